// The cache of decoding as one block of memory a sequence.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/nn/attention_cache.h"

namespace colossal::nn {

/// Holds up to `capacity` tokens of each sequence. What append() gives back are views.
///
/// Errors ("kv_cache"): those of append(); a step whose tokens are dealt out to ranks (Step::cut).
/// Memory:        a pair [sequences, capacity, N_kv, D] a layer, allocated when the layer first appends: a stage of a
///                pipeline has some layers.
/// Thread safety: none.
class KvCache final : public AttentionCache {
 public:
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}
  KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const Step& step) override;
  void advance(const Step& step, int64_t tokens) override;
  const std::vector<int64_t>& lengths() const override { return lengths_; }

 private:
  std::vector<int64_t> after(const Sequences& sequences, int64_t tokens) const;

  int64_t capacity_;
  std::vector<int64_t> lengths_;
  std::vector<at::Tensor> keys_, values_;  // of layers; undefined where the rank has none
};

}  // namespace colossal::nn
