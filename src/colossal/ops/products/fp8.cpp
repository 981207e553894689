#include "colossal/ops/products/fp8.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/device/operators.h"
#include "colossal/ops/dispatch.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

constexpr double kMinAmax = 1e-12;
constexpr int32_t kExponentBits = 0x7f800000;  // exponent bits of fp32

void check_float(const at::Tensor& x, const char* what) {
  const auto type = x.scalar_type();
  require(type == at::kDouble || type == at::kFloat || type == at::kBFloat16, "fp8", what,
          " needs fp64, fp32 or bf16: got ", type);
}

}  // namespace

at::ScalarType dtype_of(Fp8 format) { return format == Fp8::E4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2; }

double largest(Fp8 format) { return format == Fp8::E4m3 ? 448 : 57344; }

at::Tensor largest_magnitude(const at::Tensor& x) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_float(x, "largest_magnitude");
  if (x.numel() == 0) return at::zeros({}, x.options().dtype(at::kFloat));
  const auto [low, high] = at::aminmax(x);  // one pass, no copy
  return at::maximum(low.neg(), high).to(at::kFloat);
}

at::Tensor scale_of(const at::Tensor& amax, Fp8 format, double margin) {
  const at::Tensor room = at::full({}, largest(format), amax.options());
  return room / (amax.clamp_min(kMinAmax) * std::exp2(margin));
}

at::Tensor power_of_two_below(const at::Tensor& scale) {
  // Adds scale - scale, because a NaN with its mantissa cleared would be infinity.
  return scale.view(at::kInt).bitwise_and(kExponentBits).view(at::kFloat) + (scale - scale);
}

at::Tensor quantize(const at::Tensor& x, Fp8 format, const at::Tensor& scale) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  check_float(x, "quantize");
  // On accelerators a scale with a dimension widens the product in one pass, without a wide copy of x first.
  const at::Tensor scaled =
      is_for_accelerator(x) && scale.numel() == 1 ? x.mul(scale.reshape({1})) : x.to(wide_type(x)) * scale;
  // Clamped first, because ATen's conversion of values out of range differs between versions.
  return scaled.clamp_(-largest(format), largest(format)).to(at::kFloat).to(dtype_of(format));
}

at::Tensor dequantize(const at::Tensor& codes, const at::Tensor& scale, at::ScalarType dtype) {
  at::AutoDispatchBelowADInplaceOrView no_autograd;
  return codes.to(dtype == at::kDouble ? at::kDouble : at::kFloat).div_(scale).to(dtype);
}

namespace {

constexpr int64_t kScaledStep = 16;  // cuBLAS takes sizes that are multiples of it

// Returns row-major codes. They are copied as bytes, because that works for all dtypes.
at::Tensor dense_codes(const at::Tensor& codes) {
  return codes.is_contiguous() ? codes : codes.view(at::kByte).contiguous().view(codes.scalar_type());
}

/// Returns a b + bias for a [M,K] and b [K,N] with any strides.
at::Tensor multiply_scaled(const Scaled& a, const Scaled& b, const at::Tensor& bias, at::ScalarType type) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  tensor::announce_product(a.codes.size(0), b.codes.size(1), a.codes.size(1), a.codes.scalar_type());
  // cuBLAS accepts no bias if the result is fp32.
  const bool takes_bias = bias.defined() && type == at::kBFloat16 && bias.scalar_type() == type;
  const at::Tensor left = dense_codes(a.codes), right = dense_codes(b.codes.t()).t(), of_left = a.scale.reciprocal(),
                   of_right = b.scale.reciprocal();
  const at::Tensor product =
      left.is_meta()  // LibTorch has no kernel of the operator there
          ? at::empty({left.size(0), right.size(1)}, left.options().dtype(type))
          : at::_scaled_mm(left, right, of_left, of_right, takes_bias ? std::optional(bias) : std::nullopt,
                           /*scale_result=*/{}, type, /*use_fast_accum=*/false);
  return bias.defined() && !takes_bias ? product.add(bias) : product;
}

}  // namespace

bool multiplies_scaled(const at::Tensor& like, int64_t inner, int64_t columns) {
  const bool has_type = like.scalar_type() == at::kFloat || like.scalar_type() == at::kBFloat16;
  return has_type && inner % kScaledStep == 0 && columns % kScaledStep == 0 &&
         runs(DeviceOperator::ScaledProduct, like.device());
}

at::Tensor scaled_nt(const Scaled& a, const Scaled& b, const at::Tensor& bias, at::ScalarType type) {
  return multiply_scaled(a, {b.codes.t(), b.scale}, bias, type);
}

at::Tensor scaled_nn(const Scaled& a, const Scaled& b, at::ScalarType type) { return multiply_scaled(a, b, {}, type); }

at::Tensor scaled_tn(const Scaled& a, const Scaled& b, at::ScalarType type, at::Tensor sum) {
  const bool to_wide = sum.defined() && sum.scalar_type() == at::kFloat;
  const at::Tensor product = multiply_scaled({a.codes.t(), a.scale}, b, {}, to_wide ? at::kFloat : type);
  return sum.defined() ? sum.add_(product) : product;
}

}  // namespace colossal::ops
