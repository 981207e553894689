#include "colossal/ops/attention.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "colossal/base/error.h"

namespace colossal::ops {
namespace {

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  require(q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
          "attention", "q must be [B,N,S,D], k and v [B,Nkv,T,D]: got ", q.sizes(), ", ", k.sizes(), ", ", v.sizes());
  require(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention", "heads must divide by key-value heads: got ", q.size(1),
          " and ", k.size(1));
  require(!mask.causal || k.size(2) >= q.size(2), "attention", "causal queries are the last of the keys' positions: got ",
          q.size(2), " queries, ", k.size(2), " keys");
  if (mask.documents.defined())
    require(mask.documents.dim() == 2 && mask.documents.size(0) == k.size(0) && mask.documents.size(1) == k.size(2) &&
                mask.documents.size(1) >= q.size(2),
            "attention", "document ids must be [B,T] with T >= S: got ", mask.documents.sizes(), " for keys ", k.sizes());
}

double scale_of(const at::Tensor& q, const AttentionMask& mask) {
  return mask.scale != 0 ? mask.scale : 1 / std::sqrt(static_cast<double>(q.size(3)));
}

// True where a query may look: [S,T] or [B,1,S,T].
at::Tensor visible(const at::Tensor& q, const at::Tensor& k, const AttentionMask& mask) {
  const int64_t queries = q.size(2), keys = k.size(2);
  auto allowed = at::ones({queries, keys}, q.options().dtype(at::kBool).requires_grad(false));
  if (mask.causal) allowed = allowed.tril(keys - queries);
  if (!mask.documents.defined()) return allowed;
  const auto of_query = mask.documents.slice(1, keys - queries);
  return (of_query.unsqueeze(2) == mask.documents.unsqueeze(1)).unsqueeze(1).logical_and(allowed);
}

}  // namespace

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  check(q, k, v, mask);
  const int64_t group = q.size(1) / k.size(1);
  const auto type = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto keys = k.repeat_interleave(group, 1).to(type), values = v.repeat_interleave(group, 1).to(type);
  const auto scores = at::matmul(q.to(type), keys.transpose(2, 3)) * scale_of(q, mask);
  const auto hidden = visible(q, k, mask).logical_not();
  const auto weights = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::matmul(weights, values).to(q.scalar_type());
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionMask& mask) {
  check(q, k, v, mask);
  const bool grouped = q.size(1) != k.size(1);
  // ATen aligns its causal mask to the first key, which is ours only if S == T; a single query sees everything.
  const bool all_visible = !mask.documents.defined() && (!mask.causal || q.size(2) == 1);
  const bool aligned = !mask.documents.defined() && mask.causal && q.size(2) == k.size(2);
  std::optional<at::Tensor> allowed;
  if (!all_visible && !aligned) allowed = visible(q, k, mask);
  return at::scaled_dot_product_attention(q, k, v, allowed, 0.0, aligned && !all_visible, scale_of(q, mask), grouped);
}

}  // namespace colossal::ops
