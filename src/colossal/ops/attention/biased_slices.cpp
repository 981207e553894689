#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>

#include "colossal/ops/attention/biased_paths.h"
#include "colossal/ops/dispatch.h"

namespace colossal::ops {
namespace {

/// Some rows of one group.
struct RowSlice {
  int64_t group, first, rows;
  at::Tensor of(const at::Tensor& x) const { return x[group].narrow(0, first, rows); }
  /// Returns the part of a tensor whose groups and rows may be one for all.
  at::Tensor of_shared(const at::Tensor& x) const {
    const at::Tensor own = x[x.size(0) == 1 ? 0 : group];
    return own.size(0) == 1 ? own : own.narrow(0, first, rows);
  }
};

/// Calls body for slices that cover all rows.
template <class Body>
void over_slices(const BiasedInput& in, const Body& body) {
  const int64_t scores = std::max<int64_t>(in.q.size(2) * in.q.size(3) * in.k.size(3), 1);
  const int64_t most = std::max<int64_t>(kSliceElements / scores, 1);
  for (int64_t group = 0; group < in.q.size(0); ++group)
    for (int64_t first = 0; first < in.q.size(1); first += most)
      body(RowSlice{group, first, std::min(most, in.q.size(1) - first)});
}

/// Returns the scores of a slice [rows, N, S, T] in the computing type, minus infinity for hidden pairs.
at::Tensor scores_of(const BiasedInput& in, const at::Tensor& hidden, const RowSlice& slice) {
  const auto wide = wide_type(in.q);
  at::Tensor scores =
      at::matmul(slice.of(in.q).to(wide).mul(in.rules.scale), slice.of(in.k).to(wide).transpose(-1, -2));
  if (in.rules.bias.defined()) scores.add_(in.rules.bias[slice.group].to(wide));
  if (hidden.defined()) scores.masked_fill_(slice.of_shared(hidden), -std::numeric_limits<double>::infinity());
  return scores;
}

}  // namespace

BiasedResult sliced_biased_attention(const BiasedInput& in, const at::Tensor& hidden) {
  const at::AutoGradMode no_grad(false);
  const auto wide = wide_type(in.q);
  BiasedResult result{at::empty(in.q.sizes(), in.q.options().requires_grad(false)),
                      at::empty(in.q.sizes().slice(0, 4), in.q.options().requires_grad(false).dtype(wide))};
  const double infinity = std::numeric_limits<double>::infinity();
  if (in.k.size(3) == 0) {
    result.out.zero_(), result.log_sums.fill_(infinity);
    return result;
  }
  over_slices(in, [&](const RowSlice& slice) {
    at::Tensor scores = scores_of(in, hidden, slice), largest = scores.amax(-1, /*keepdim=*/true);
    if (hidden.defined()) largest.masked_fill_(largest.eq(-infinity), 0);
    const at::Tensor weights = scores.sub_(largest).exp_();
    at::Tensor total = weights.sum(-1, /*keepdim=*/true);
    // A query that sees no key has weights of 0, here and in backward.
    if (hidden.defined()) total.masked_fill_(total.eq(0), infinity);
    slice.of(result.out).copy_(at::matmul(weights.div_(total), slice.of(in.v).to(wide)));
    slice.of(result.log_sums).copy_(total.log_().add_(largest).squeeze(-1));  // logsumexp has no kernel on meta
  });
  return result;
}

BiasedGradients sliced_biased_gradients(const BiasedInput& in, const at::Tensor& hidden, const BiasedResult& result,
                                        const at::Tensor& dout, bool wants_bias) {
  const at::AutoGradMode no_grad(false);
  const auto wide = wide_type(in.q);
  const auto like = [](const at::Tensor& x) { return at::empty(x.sizes(), x.options().requires_grad(false)); };
  BiasedGradients d{like(in.q), like(in.k), like(in.v), {}};
  if (wants_bias) d.bias = at::zeros(in.rules.bias.sizes(), in.rules.bias.options().requires_grad(false).dtype(wide));
  over_slices(in, [&](const RowSlice& slice) {
    const at::Tensor weights = scores_of(in, hidden, slice).sub_(slice.of(result.log_sums).unsqueeze(-1)).exp_();
    const at::Tensor dy = slice.of(dout).to(wide);
    slice.of(d.v).copy_(at::matmul(weights.transpose(-1, -2), dy));
    const at::Tensor deltas = (dy * slice.of(result.out).to(wide)).sum(-1, /*keepdim=*/true);
    at::Tensor of_scores = at::matmul(dy, slice.of(in.v).to(wide).transpose(-1, -2));
    of_scores.sub_(deltas).mul_(weights);
    if (wants_bias) d.bias[slice.group].add_(of_scores.sum(0));
    slice.of(d.q).copy_(at::matmul(of_scores, slice.of(in.k).to(wide)).mul_(in.rules.scale));
    slice.of(d.k).copy_(at::matmul(of_scores.transpose(-1, -2), slice.of(in.q).to(wide)).mul_(in.rules.scale));
  });
  if (wants_bias) d.bias = d.bias.to(in.rules.bias.scalar_type());
  return d;
}

}  // namespace colossal::ops
