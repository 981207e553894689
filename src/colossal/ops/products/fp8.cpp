#include "colossal/ops/products/fp8.h"

#include <ATen/ATen.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"

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

}  // namespace colossal::ops
