#include "colossal/nn/kv_cache.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::nn {

KvCache::KvCache(int64_t layers, int64_t batch, int64_t capacity, int64_t kv_heads_local, int64_t head_dim,
                 at::TensorOptions options)
    : capacity_(capacity) {
  for (int64_t i = 0; i < layers; ++i) {
    keys_.push_back(at::empty({batch, capacity, kv_heads_local, head_dim}, options));
    values_.push_back(at::empty({batch, capacity, kv_heads_local, head_dim}, options));
  }
}

std::pair<at::Tensor, at::Tensor> KvCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = k.size(1);
  require(length_ + tokens <= capacity_, "kv_cache", "the sequence must fit: got ", length_ + tokens, " tokens, room for ",
          capacity_);
  keys_.at(layer).narrow(1, length_, tokens).copy_(k);
  values_.at(layer).narrow(1, length_, tokens).copy_(v);
  return {keys_[layer].narrow(1, 0, length_ + tokens), values_[layer].narrow(1, 0, length_ + tokens)};
}

}  // namespace colossal::nn
