#include "colossal/ops/products/row_codes.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/ops/products/fp8.h"
#include "colossal/ops/products/prepacked_kernels.h"

namespace colossal::ops {
namespace {

constexpr double kMinMagnitude = 1e-30;      // lower bound of a row's largest magnitude: a row of zeros has a scale > 0
constexpr int64_t kEncodingGrain = 1 << 14;  // below this size a loop takes no longer than it takes to wake a thread

bool has_encoder(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() && x.numel() > 0 && (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

RowCodes encode_by_kernel(const at::Tensor& x, at::ScalarType dtype) {
  const at::Tensor rows = x.contiguous();
  const int64_t size = x.size(-1), count = x.numel() / size, item = static_cast<int64_t>(x.itemsize());
  const auto options = x.options().requires_grad(false);
  const RowCodes coded{at::empty(x.sizes(), options.dtype(dtype)),
                       at::empty(x.sizes().slice(0, x.dim() - 1), options.dtype(at::kFloat))};
  const RowsToLayOut all{.x = rows.const_data_ptr(),
                         .type = narrow_type(x),
                         .stride = size * item,
                         .inputs = size,
                         .out = coded.codes.mutable_data_ptr(),
                         .scales = coded.scales.mutable_data_ptr<float>()};
  const auto encode = dtype == at::kChar ? prepacked_kernels().encode_int8 : prepacked_kernels().encode_e4m3;
  parallel_for(0, count, std::max<int64_t>(kEncodingGrain / size, 1), [&](int64_t from, int64_t to) {
    RowsToLayOut part = all;
    part.x = static_cast<const char*>(all.x) + from * all.stride;
    part.rows = to - from;
    part.out = static_cast<char*>(all.out) + from * size;
    part.scales = all.scales + from;
    encode(part);
  });
  return coded;
}

}  // namespace

RowCodes encode_rows(const at::Tensor& x, at::ScalarType dtype) {
  if (has_encoder(x)) return encode_by_kernel(x, dtype);
  const at::Tensor numbers = x.to(at::kFloat);
  const double most = dtype == at::kChar ? 127 : largest(Fp8::E4m3);
  const at::Tensor scales = numbers.abs().amax(-1).clamp_min_(kMinMagnitude).div_(most);
  const at::Tensor scaled = numbers / scales.unsqueeze(-1);
  // Clamped, because rounding may put the largest value one last bit above `most`.
  return {(dtype == at::kChar ? scaled.round() : scaled).clamp_(-most, most).to(dtype), scales};
}

}  // namespace colossal::ops
