#include "colossal/ops/products/row_codes.h"

#include <ATen/ATen.h>

#include "colossal/ops/products/fp8.h"

namespace colossal::ops {
namespace {

constexpr double kMinMagnitude = 1e-30;  // lower bound of a row's largest magnitude: a row of zeros has a scale > 0

}  // namespace

RowCodes encode_rows(const at::Tensor& x, at::ScalarType dtype) {
  const at::Tensor numbers = x.to(at::kFloat);
  const double most = dtype == at::kChar ? 127 : largest(Fp8::E4m3);
  const at::Tensor scales = numbers.abs().amax(-1).clamp_min_(kMinMagnitude).div_(most);
  const at::Tensor scaled = numbers / scales.unsqueeze(-1);
  // Clamped, because rounding may put the largest value one last bit above `most`.
  return {(dtype == at::kChar ? scaled.round() : scaled).clamp_(-most, most).to(dtype), scales};
}

}  // namespace colossal::ops
