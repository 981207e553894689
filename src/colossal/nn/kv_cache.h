// The KV cache of decoding with one contiguous piece of memory per sequence.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/nn/attention_cache.h"

namespace colossal::nn {

/// A cache for up to `capacity` tokens of each sequence. append() returns views.
///
/// Errors ("kv_cache"): the errors of append(); a step whose tokens are split over ranks (ForwardContext::cut).
/// Memory:        two tensors [sequences, capacity, N_kv, D] per layer (one if the values are the keys), allocated when
///                the layer first appends. A pipeline stage allocates only the tensors of its layers.
/// Thread safety: none.
class KvCache final : public AttentionCache {
 public:
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}
  KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const ForwardContext& step) override;
  bool joins_values() const override { return true; }
  void advance(const ForwardContext& step, int64_t tokens) override;
  const std::vector<int64_t>& lengths() const override { return lengths_; }

 private:
  std::vector<int64_t> after(const Sequences& sequences, int64_t tokens) const;

  int64_t capacity_;
  std::vector<int64_t> lengths_;
  std::vector<at::Tensor> keys_, values_;  // one per layer; undefined for layers that this rank does not have
};

}  // namespace colossal::nn
