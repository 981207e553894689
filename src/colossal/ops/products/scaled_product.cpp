#include "colossal/ops/products/scaled_product.h"

#include <ATen/ATen.h>

#include "colossal/ops/device/operators.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
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
