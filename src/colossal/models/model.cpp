#include "colossal/models/model.h"

#include <ATen/ATen.h>

namespace colossal::models {

at::Tensor hidden_states(const Model& model, const at::Tensor& inputs, const nn::Step& step) {
  at::Tensor hidden = model.embed(inputs, step);
  for (const Block& block : model.blocks) hidden = block(hidden, step);
  if (step.cache) step.cache->advance(inputs.size(1));
  return model.norm(hidden, step);
}

nn::KvCache make_cache(const Model& model, int64_t batch, int64_t capacity, at::TensorOptions options) {
  return nn::KvCache(model.shape.layers, batch / model.batch_parts, capacity, model.kv_heads_local, model.shape.head_dim, options);
}

}  // namespace colossal::models
