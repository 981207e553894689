// The cache of decoding for a model with an encoder: keys and values of the source, which come once, and those of the
// answer, which grow.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/nn/attention_cache.h"

namespace colossal::nn {

/// Holds one sequence a row. Layers may bring unequal numbers of tokens: those that look at the source bring all of it
/// in the first step and none afterwards. lengths() and `capacity` are of what the decoder reads, the answer.
///
/// Errors ("kv_cache"): rows of several sequences, more rows than before, no more room, a step that does not say
///                      Step::source_tokens.
/// Cost:   a token copies what its layer holds, which attention reads anyway.
/// Thread safety: none.
class EncoderDecoderCache final : public AttentionCache {
 public:
  explicit EncoderDecoderCache(int64_t capacity) : capacity_(capacity) {}
  KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const Step& step) override;
  void advance(const Step& step, int64_t tokens) override;
  const std::vector<int64_t>& lengths() const override { return lengths_; }

 private:
  int64_t capacity_;
  std::vector<int64_t> lengths_;
  std::vector<at::Tensor> keys_, values_;  // of layers; undefined where the rank has none
};

}  // namespace colossal::nn
