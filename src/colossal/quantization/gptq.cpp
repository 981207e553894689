#include "colossal/quantization/gptq.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::quantization {
namespace {

constexpr int64_t kColumnsAtOnce = 128;  // number of columns whose errors reach all later columns in one product
constexpr double kDamping = 0.01;        // added to H's diagonal, as a fraction of its mean

/// Returns U, upper triangular, with (H + damping)^-1 = Ut U, where H = 2 * moments. Row i says how column i's error is
/// distributed over later columns.
at::Tensor spreading(const at::Tensor& moments) {
  at::Tensor h = 2 * moments.to(at::kDouble);
  // Adds 1 to the diagonal of inputs that are always 0, so that H is positive definite even if all of them are. Their
  // columns neither get nor give errors, because the rest of their rows of H is 0.
  const at::Tensor silent = h.diagonal().eq(0).to(at::kDouble);
  h.diagonal().add_(silent + kDamping * h.diagonal().mean());
  const at::Tensor inverse = at::cholesky_inverse(at::linalg_cholesky(h));
  return at::linalg_cholesky(inverse, true).to(at::kFloat);
}

/// Quantizes `column` [out, n] with the scales and minima [out, 1] of its group, and rounds as ops::round_to_codes
/// does. Returns uint8 [out, n].
at::Tensor codes_of(const at::Tensor& column, const ops::GroupCodes& group) {
  const double half = group.bits == 8 ? 127 : 7;
  if (group.minima.defined())
    return ((column - group.minima) / group.scales).nan_to_num(0, 0, 0).round().clamp(0, 15).to(at::kByte);
  return ((column / group.scales).nan_to_num(0, 0, 0).round().clamp(-half, half) + (half + 1)).to(at::kByte);
}

/// Dequantizes the codes of one column: fp32 [out, 1].
at::Tensor value_of(const at::Tensor& codes, const ops::GroupCodes& group) {
  const at::Tensor numbers = codes.to(at::kFloat);
  if (group.minima.defined()) return numbers * group.scales + group.minima;
  return (numbers - static_cast<double>(1 << (group.bits - 1))) * group.scales;
}

}  // namespace

ops::GroupCodes gptq(const at::Tensor& weight, const at::Tensor& moments, const ops::RoundingOptions& options) {
  require(
      weight.dim() == 2 && moments.dim() == 2 && moments.size(0) == weight.size(1) && moments.size(1) == weight.size(1),
      "quantization", "moments must be [in, in] of a weight [out, in]");
  require(at::isfinite(moments).all().item<bool>(), "quantization", "layer inputs must be finite");
  ops::GroupCodes result = ops::round_to_codes(weight, options);  // for its checks and shapes; values are overwritten
  const int64_t in = weight.size(1), group = options.group;
  const int64_t block = group * std::max<int64_t>(1, kColumnsAtOnce / group);  // a multiple of group
  at::Tensor w = weight.detach().to(at::kFloat).clone();
  const at::Tensor u = spreading(moments);
  ops::GroupCodes of_group;
  for (int64_t begin = 0; begin < in; begin += block) {
    const int64_t end = std::min(begin + block, in);
    std::vector<at::Tensor> errors;
    for (int64_t i = begin; i < end; ++i) {
      if (i % group == 0) {
        of_group = ops::round_to_codes(w.slice(1, i, std::min(i + group, in)), options);
        result.scales.select(1, i / group).copy_(of_group.scales.squeeze(1));
        if (of_group.minima.defined()) result.minima.select(1, i / group).copy_(of_group.minima.squeeze(1));
      }
      const at::Tensor column = w.slice(1, i, i + 1), codes = codes_of(column, of_group);
      result.codes.slice(1, i, i + 1).copy_(codes);
      const at::Tensor error = (column - value_of(codes, of_group)) / u[i][i];
      if (i + 1 < end) w.slice(1, i + 1, end).sub_(at::matmul(error, u.slice(0, i, i + 1).slice(1, i + 1, end)));
      errors.push_back(error);
    }
    if (end < in) w.slice(1, end, in).sub_(at::matmul(at::cat(errors, 1), u.slice(0, begin, end).slice(1, end, in)));
  }
  return result;
}

double output_error(const at::Tensor& weight, const at::Tensor& near, const at::Tensor& moments) {
  const at::Tensor apart = near.to(at::kDouble) - weight.to(at::kDouble);
  return (at::matmul(apart, moments.to(at::kDouble)) * apart).sum().item<double>();
}

}  // namespace colossal::quantization
