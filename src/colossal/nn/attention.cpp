#include <ATen/ATen.h>

#include "colossal/nn/layers.h"
#include "colossal/ops/attention.h"

namespace colossal::nn {

Heads split_heads(const at::Tensor& fused, int64_t heads_local, int64_t kv_heads_local, int64_t head_dim) {
  const int64_t q = heads_local * head_dim, kv = kv_heads_local * head_dim;
  auto part = [&](int64_t from, int64_t width, int64_t count) {
    return fused.narrow(-1, from, width).unflatten(-1, {count, head_dim});
  };
  return {part(0, q, heads_local), part(q, kv, kv_heads_local), part(q + kv, kv, kv_heads_local)};
}

at::Tensor attend(const Heads& heads, int64_t layer, const Step& step) {
  at::Tensor k = heads.k, v = heads.v;
  if (step.cache) std::tie(k, v) = step.cache->append(layer, k, v);
  const at::Tensor out =
      ops::attention(heads.q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {.documents = step.documents});
  return out.transpose(1, 2).flatten(2);
}

}  // namespace colossal::nn
