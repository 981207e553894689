#include "colossal/nn/kv_cache.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::nn {

KvCache::KvCache(int64_t layers, int64_t batch, int64_t capacity, int64_t kv_heads_local, int64_t head_dim,
                 at::TensorOptions options)
    : shape_{batch, capacity, kv_heads_local, head_dim},
      options_(options),
      keys_(layers),
      values_(layers),
      capacity_(capacity) {}

std::pair<at::Tensor, at::Tensor> KvCache::append(int64_t layer, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = k.size(1);
  require(length_ + tokens <= capacity_, "kv_cache", "the sequence must fit: got ", length_ + tokens,
          " tokens, room for ", capacity_);
  if (!keys_.at(layer).defined()) {
    keys_[layer] = at::empty(shape_, options_);
    values_[layer] = at::empty(shape_, options_);
  }
  keys_[layer].narrow(1, length_, tokens).copy_(k);
  values_[layer].narrow(1, length_, tokens).copy_(v);
  return {keys_[layer].narrow(1, 0, length_ + tokens), values_[layer].narrow(1, 0, length_ + tokens)};
}

}  // namespace colossal::nn
