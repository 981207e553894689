#include "colossal/ops/partial_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "colossal/ops/attention_mask.h"
#include "colossal/ops/blocked_attention.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/partial_flash_attention.h"
#include "colossal/tensor/flops.h"

namespace colossal::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The kernel writes infinity where a query sees nothing, so that backward's weights e^(score - log_sum) are 0; sums
/// have minus infinity there, so that they merge.
at::Tensor with_blind(const at::Tensor& log_sums, double there, double here) {
  return log_sums.masked_fill(log_sums.eq(there), here);
}

/// Inputs in the type that is computed in.
struct WideHeads {
  WideHeads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)
      : q(q.detach().to(wide_type(q))), k(k.detach().to(wide_type(q))), v(v.detach().to(wide_type(q))) {}
  at::Tensor q, k, v;
};

void announce(const at::Tensor& q, int64_t pairs, double of_a_pair) {
  tensor::announce_flops(of_a_pair * static_cast<double>(q.size(1) * q.size(3)) * static_cast<double>(pairs));
}

/// Of meta tensors the kernels tell sizes.
bool goes_to_kernel(const at::Tensor& q) { return q.is_meta() || has_kernel(q); }

/// Whether queries and keys can have no document in common: in each row the ids of one end before those of the other.
bool are_other_documents(const AttentionMask& mask) {
  const at::Tensor &keys = mask.documents, &queries = mask.query_documents;
  if (!keys.defined() || !queries.defined() || !keys.is_cpu() || !queries.is_cpu()) return false;
  if (keys.size(1) == 0 || queries.size(1) == 0) return true;
  const auto [first_key, last_key] = at::aminmax(keys, 1);
  const auto [first_query, last_query] = at::aminmax(queries, 1);
  return last_key.lt(first_query).logical_or(last_query.lt(first_key)).all().item<bool>();
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

PartialAttention partial_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const AttentionMask& mask) {
  check_attention(q, k, v, mask);
  const at::NoGradGuard no_grad;
  const int64_t pairs = visible_pairs(q, k, mask);
  announce(q, pairs, 4);  // two products, of keys and of values
  if (pairs == 0 || are_other_documents(mask)) return {};
  if (takes_partial_flash_attention(q, k, mask)) return partial_flash_attention(q, k, v, mask);
  const WideHeads wide(q, k, v);
  if (!goes_to_kernel(wide.q)) return partial_attention_reference(q, k, v, mask);
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
  largest = with_blind(largest, -kInfinity, 0);  // of queries that have seen nothing
  const at::Tensor own = (sum.log_sums - largest).exp(), other = (part.log_sums - largest).exp();
  const at::Tensor both = own + other;  // at least 1, or 0 where nothing is seen
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

AttentionGradients partial_attention_backward(const at::Tensor& dout, const at::Tensor& q, const at::Tensor& k,
                                              const at::Tensor& v, const AttentionMask& mask,
                                              const PartialAttention& whole) {
  check_attention(q, k, v, mask);
  const at::NoGradGuard no_grad;
  const int64_t pairs = visible_pairs(q, k, mask);
  announce(q, pairs, 8);  // the gradients of both factors of each product
  if (pairs == 0 || are_other_documents(mask)) return {};
  if (takes_partial_flash_attention(q, k, mask)) return partial_flash_attention_backward(dout, q, k, v, mask, whole);
  const WideHeads wide(q, k, v);
  if (!goes_to_kernel(wide.q)) return partial_attention_backward_reference(dout, q, k, v, mask, whole);
  const BlockedGradients d = blocked_attention_backward(
      blocked_heads(wide.q, wide.k, wide.v, mask),
      {whole.out, with_blind(whole.log_sums, -kInfinity, kInfinity).contiguous()}, dout.to(wide_type(q)));
  return {d.q, d.k, d.v};
}

}  // namespace colossal::ops
