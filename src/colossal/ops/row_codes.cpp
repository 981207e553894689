#include "colossal/ops/row_codes.h"

#include <ATen/ATen.h>

#include "colossal/ops/fp8.h"

namespace colossal::ops {
namespace {

constexpr double kSmallest = 1e-30;  // a row of zeros has this for its largest number

}  // namespace

RowCodes encode_rows(const at::Tensor& x, at::ScalarType dtype) {
  const at::Tensor numbers = x.to(at::kFloat);
  const double most = dtype == at::kChar ? 127 : largest(Fp8::E4m3);
  const at::Tensor scales = numbers.abs().amax(-1).clamp_min_(kSmallest).div_(most);
  const at::Tensor scaled = numbers / scales.unsqueeze(-1);
  // the largest may come out a last bit above
  return {(dtype == at::kChar ? scaled.round() : scaled).clamp_(-most, most).to(dtype), scales};
}

}  // namespace colossal::ops
