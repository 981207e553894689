#include "colossal/ops/attention/partial.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/ops/attention/blocked.h"
#include "colossal/ops/attention/flash.h"
#include "colossal/ops/attention/mask.h"
#include "colossal/ops/dispatch.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Replaces the value `there` in log_sums by `here`. For a query that sees no key, the kernel writes +infinity, so that
/// backward's weights e^(score - log_sum) are 0. PartialAttention holds -infinity there, so that results merge.
at::Tensor with_blind(const at::Tensor& log_sums, double there, double here) {
  return log_sums.masked_fill(log_sums.eq(there), here);
}

/// Inputs in the computing type.
struct WideHeads {
  WideHeads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)
      : q(q.detach().to(wide_type(q))), k(k.detach().to(wide_type(q))), v(v.detach().to(wide_type(q))) {}
  at::Tensor q, k, v;
};

PartialAttention nothing_seen(const at::Tensor& q) {
  const auto wide = q.options().requires_grad(false).dtype(wide_type(q));
  return {at::zeros({q.size(0), q.size(2), q.size(1), q.size(3)}, wide).transpose(1, 2),
          at::full({q.size(0), q.size(1), q.size(2)}, -kInfinity, wide)};
}

void announce(const at::Tensor& q, int64_t pairs, double of_a_pair) {
  tensor::announce_flops(of_a_pair * static_cast<double>(q.size(1) * q.size(3)) * static_cast<double>(pairs),
                         {tensor::Operation::Kind::Attention, q.scalar_type()});
}

/// Smallest and largest document id of a run, for each batch row.
struct IdBounds {
  std::vector<int64_t> least, most;
};

/// Returns the bounds of each run of `documents` [B, S], which must be on the host. The runs are consecutive in it.
std::vector<IdBounds> bounds_of(const at::Tensor& documents, const std::vector<PositionRun>& runs) {
  const at::Tensor ids = documents.contiguous();
  const int64_t rows = ids.size(0), tokens = ids.size(1);
  std::vector<IdBounds> bounds(runs.size(), {std::vector<int64_t>(rows), std::vector<int64_t>(rows)});
  for (int64_t row = 0; row < rows; ++row)
    for (size_t i = 0, first = 0; i < runs.size(); first += runs[i++].size) {
      const auto* own = ids.const_data_ptr<int64_t>() + row * tokens + first;
      const auto [least, most] = std::minmax_element(own, own + runs[i].size);
      bounds[i].least[row] = runs[i].size > 0 ? *least : 0, bounds[i].most[row] = runs[i].size > 0 ? *most : 0;
    }
  return bounds;
}

enum class SharedDocuments { None, AllOfOne, Some };

/// Returns which documents the queries and keys of runs with these bounds share.
SharedDocuments shared_documents(const IdBounds& queries, const IdBounds& keys) {
  bool are_one = true, are_others = true;
  for (size_t row = 0; row < keys.least.size(); ++row) {
    const int64_t least = std::min(queries.least[row], keys.least[row]);
    are_one = are_one && queries.most[row] == least && keys.most[row] == least;
    are_others = are_others && (queries.most[row] < keys.least[row] || keys.most[row] < queries.least[row]);
  }
  if (are_others) return SharedDocuments::None;
  return are_one ? SharedDocuments::AllOfOne : SharedDocuments::Some;
}

struct Places {
  int64_t first, size;
  at::Tensor of(const at::Tensor& x) const { return x.narrow(2, first, size); }
};

/// Calls body(queries, keys, mask) for each pair of a run of queries and a run of keys that see one another. `queries`
/// and `keys` are their places in the tensors, `mask` is the mask between them. It serves accelerators, because their
/// operators support single runs only.
template <class Body>
void for_seen_runs(const at::Tensor& q, const at::Tensor& k, AttentionMask mask, const Body& body) {
  const int64_t behind = k.size(2) - q.size(2);
  if (mask.keys.empty()) mask.keys = {{0, k.size(2)}};
  if (mask.queries.empty()) {  // the queries have the last of the keys' positions
    mask.queries = {{behind, q.size(2)}};
    if (mask.documents.defined()) mask.query_documents = mask.documents.narrow(1, behind, q.size(2));
  }
  const bool are_known = mask.documents.defined() && mask.documents.is_cpu() && mask.query_documents.is_cpu();
  const auto of_keys = are_known ? bounds_of(mask.documents, mask.keys) : std::vector<IdBounds>();
  const auto of_queries = are_known ? bounds_of(mask.query_documents, mask.queries) : std::vector<IdBounds>();
  Places queries{}, keys{};
  for (size_t i = 0; i < mask.queries.size(); queries.first += mask.queries[i++].size) {
    keys.first = 0, queries.size = mask.queries[i].size;
    for (size_t j = 0; j < mask.keys.size(); keys.first += mask.keys[j++].size) {
      keys.size = mask.keys[j].size;
      const auto shared = are_known ? shared_documents(of_queries[i], of_keys[j]) : SharedDocuments::Some;
      AttentionMask pair = mask;
      pair.queries = {mask.queries[i]}, pair.keys = {mask.keys[j]};
      pair.documents = pair.query_documents = at::Tensor();
      if (shared == SharedDocuments::None || visible_pairs(queries.of(q), keys.of(k), pair) == 0) continue;
      if (mask.documents.defined() && shared == SharedDocuments::Some) {
        pair.documents = mask.documents.narrow(1, keys.first, keys.size);
        pair.query_documents = mask.query_documents.narrow(1, queries.first, queries.size);
      }
      body(queries, keys, pair);
    }
  }
}

void check_part(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  check_attention(q, k, v, mask);
  require(mask.lengths.empty(), "attention", "attention over a part of the keys needs rows of equal lengths: got ",
          mask.lengths.size(), " lengths");
}

}  // namespace

PartialAttention partial_attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const AttentionMask& mask) {
  check_attention(q, k, v, mask);
  const at::NoGradGuard no_grad;
  const WideHeads wide(q, k, v);
  const at::Tensor scores = attention_scores(wide.q, wide.k, mask), log_sums = scores.logsumexp(-1);
  const at::Tensor weights = (scores - with_blind(log_sums, -kInfinity, kInfinity).unsqueeze(-1)).exp();
  return {at::matmul(weights, wide.v.repeat_interleave(q.size(1) / k.size(1), 1)), log_sums};
}

at::Tensor as_partial_operand(const at::Tensor& x) {
  return is_for_accelerator(x) ? x.detach() : x.detach().to(wide_type(x));
}

namespace {

/// Scores and weights [B, N, S, T] of the reference, without values.
struct ShapesOfPairs {
  ShapesOfPairs(const at::Tensor& q, const at::Tensor& k)
      : scores(at::empty({q.size(0), q.size(1), q.size(2), k.size(2)}, q.options().dtype(wide_type(q)))),
        weights(at::empty_like(scores)) {}
  at::Tensor scores, weights;
};

/// Computes a pair of runs. On meta, where LibTorch lacks operators of the reference, its largest tensors stand for it.
PartialAttention of_pair(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  if (takes_partial_flash_attention(q, k, mask)) return partial_flash_attention(q, k, v, mask);
  if (!q.is_meta()) return partial_attention_reference(q, k, v, mask);
  const WideHeads wide(q, k, v);
  const ShapesOfPairs pairs(q, k);
  return {at::empty(q.sizes(), wide.q.options()), at::empty(q.sizes().slice(0, 3), wide.q.options())};
}

PartialAttention by_runs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  const PartialAttention whole = nothing_seen(q);
  for_seen_runs(q, k, mask, [&](const Places& queries, const Places& keys, const AttentionMask& pair) {
    const at::Tensor own = queries.of(q), theirs = keys.of(k);
    PartialAttention sum{queries.of(whole.out), queries.of(whole.log_sums)};
    merge(sum, of_pair(own, theirs, keys.of(v), pair));
  });
  return whole;
}

}  // namespace

PartialAttention partial_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionMask& mask) {
  check_part(q, k, v, mask);
  const at::NoGradGuard no_grad;
  const int64_t pairs = visible_pairs(q, k, mask);
  if (pairs == 0) return {};
  announce(q, pairs, 4);  // two products, with keys and with values
  if (is_for_accelerator(q)) return by_runs(q, k, v, mask);
  const WideHeads wide(q, k, v);
  const BlockedResult result = blocked_attention(blocked_heads(wide.q, wide.k, wide.v, mask));
  return {result.out, with_blind(result.log_sums, kInfinity, -kInfinity)};
}

void merge(PartialAttention& sum, const PartialAttention& part) {
  if (!part.out.defined()) return;
  if (!sum.out.defined()) {
    sum = part;
    return;
  }
  const at::NoGradGuard no_grad;
  at::Tensor largest = at::maximum(sum.log_sums, part.log_sums);
  largest = with_blind(largest, -kInfinity, 0);  // avoids NaN for queries that have seen no key
  const at::Tensor own = (sum.log_sums - largest).exp(), other = (part.log_sums - largest).exp();
  const at::Tensor both = own + other;  // at least 1, or 0 for a query that sees no key
  const at::Tensor shares = both.clamp_min(1).reciprocal();
  sum.out.mul_((own * shares).unsqueeze(-1)).addcmul_(part.out, (other * shares).unsqueeze(-1));
  sum.log_sums.copy_(largest + both.log());
}

AttentionGradients partial_attention_backward_reference(const at::Tensor& dout, const at::Tensor& q,
                                                        const at::Tensor& k, const at::Tensor& v,
                                                        const AttentionMask& mask, const PartialAttention& whole) {
  check_attention(q, k, v, mask);
  const at::AutoGradMode with_gradients(true);
  const WideHeads wide(q, k, v);
  const at::Tensor gradient = dout.detach().to(wide_type(q));
  const torch::autograd::variable_list leaves{wide.q.detach().requires_grad_(), wide.k.detach().requires_grad_(),
                                              wide.v.detach().requires_grad_()};
  const at::Tensor scores = attention_scores(leaves[0], leaves[1], mask);
  const at::Tensor values = leaves[2].repeat_interleave(q.size(1) / k.size(1), 1);
  const at::Tensor weights = (scores.detach() - with_blind(whole.log_sums, -kInfinity, kInfinity).unsqueeze(-1)).exp();
  const at::Tensor delta = (gradient * whole.out).sum(-1, /*keepdim=*/true);
  const at::Tensor dscores = weights * (at::matmul(gradient, values.detach().transpose(2, 3)) - delta);
  const auto d = torch::autograd::grad({scores, at::matmul(weights, values)}, leaves, {dscores, gradient});
  return {d[0], d[1], d[2]};
}

namespace {

/// The gradients of of_pair().
AttentionGradients backward_of_pair(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const AttentionMask& mask, const PartialAttention& whole) {
  if (takes_partial_flash_attention(q, k, mask)) return partial_flash_attention_backward(dout, q, k, v, mask, whole);
  if (!q.is_meta()) return partial_attention_backward_reference(dout, q, k, v, mask, whole);
  const WideHeads wide(q, k, v);
  const ShapesOfPairs pairs(q, k), gradients(q, k);
  return {at::empty_like(wide.q), at::empty_like(wide.k), at::empty_like(wide.v)};
}

AttentionGradients backward_by_runs(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                    const at::Tensor& v, const AttentionMask& mask, const PartialAttention& whole) {
  const auto zeros = [&](const at::Tensor& x) { return at::zeros(x.sizes(), x.options().dtype(wide_type(x))); };
  const AttentionGradients d{zeros(q), zeros(k), zeros(v)};
  for_seen_runs(q, k, mask, [&](const Places& queries, const Places& keys, const AttentionMask& pair) {
    const at::Tensor own = queries.of(q), theirs = keys.of(k);
    const PartialAttention result{queries.of(whole.out), queries.of(whole.log_sums)};
    const AttentionGradients part = backward_of_pair(queries.of(dout), own, theirs, keys.of(v), pair, result);
    queries.of(d.q).add_(part.q);
    keys.of(d.k).add_(part.k), keys.of(d.v).add_(part.v);
  });
  return d;
}

}  // namespace

AttentionGradients partial_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const AttentionMask& mask,
                                              const PartialAttention& whole) {
  check_part(q, k, v, mask);
  const at::NoGradGuard no_grad;
  const int64_t pairs = visible_pairs(q, k, mask);
  if (pairs == 0) return {};
  announce(q, pairs, 8);  // the gradients of both factors of each product
  if (is_for_accelerator(q)) return backward_by_runs(dout, q, k, v, mask, whole);
  const WideHeads wide(q, k, v);
  const BlockedGradients d = blocked_attention_backward(
      blocked_heads(wide.q, wide.k, wide.v, mask),
      {whole.out, with_blind(whole.log_sums, -kInfinity, kInfinity).contiguous()}, dout.to(wide_type(q)));
  return {d.q, d.k, d.v};
}

}  // namespace colossal::ops
