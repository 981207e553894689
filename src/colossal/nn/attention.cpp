#include "colossal/ops/attention.h"

#include <ATen/ATen.h>

#include "colossal/nn/layers.h"

namespace colossal::nn {
namespace {

/// Of sequences that a rank has whole.
struct WholeAttention : Attention {
  WholeAttention(int64_t index, const AttentionOptions& options) : index(index), options(options) {}
  Inside forward(const Heads& heads, const Step& step) override {
    at::Tensor k = heads.k, v = heads.v;
    if (step.cache) std::tie(k, v) = step.cache->append(index, k, v);
    const at::Tensor out = ops::attention(heads.q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          {.causal = options.causal, .documents = heads.tokens.of(step.documents)});
    return {out.transpose(1, 2).flatten(2)};
  }
  int64_t index;  ///< among the attention layers of the model
  AttentionOptions options;
};

}  // namespace

Heads split_heads(const at::Tensor& fused, int64_t heads_local, int64_t kv_heads_local, int64_t head_dim) {
  // One split, not three narrows: the backward of each narrow would fill a zero gradient of the whole and add them up.
  const int64_t kv = kv_heads_local * head_dim;
  const auto parts = fused.split_with_sizes({heads_local * head_dim, kv, kv}, -1);
  auto heads = [&](const at::Tensor& part) { return part.unflatten(-1, {-1, head_dim}); };
  return {heads(parts[0]), heads(parts[1]), heads(parts[2]), {}};
}

std::unique_ptr<Attention> Layers::attention(const std::string&, const AttentionShape&,
                                             const AttentionOptions& options) {
  return std::make_unique<WholeAttention>(next_attention(), options);
}

}  // namespace colossal::nn
