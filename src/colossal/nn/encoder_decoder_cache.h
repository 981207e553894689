// The KV cache of decoding for a model with an encoder. It holds keys and values: those for the source are appended
// once, those for the target grow.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/nn/attention_cache.h"

namespace colossal::nn {

/// Part of a ForwardContext: the number of tokens at the start of each row that the encoder of the model reads. 0 = the
/// encoder read them in an earlier step, and the cache holds what the decoder needs of them. Without it, it is the
/// number that the model's shape says (models::Task::source_of).
struct SourceTokens {
  int64_t count;
};

/// A cache of one sequence per row. Layers may append different numbers of tokens. Layers that attend to the source
/// append all of it in the first step and no tokens afterwards. lengths() and `capacity` count the tokens that the
/// decoder reads, the target.
///
/// Errors ("kv_cache"): rows of several sequences; another number of rows than before; no more room; a step without
///                      SourceTokens.
/// Cost:   each new token copies the keys and values that its layer holds, which attention reads anyway.
/// Thread safety: none.
class EncoderDecoderCache final : public AttentionCache {
 public:
  explicit EncoderDecoderCache(int64_t capacity) : capacity_(capacity) {}
  KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const ForwardContext& step) override;
  void advance(const ForwardContext& step, int64_t tokens) override;
  const std::vector<int64_t>& lengths() const override { return lengths_; }

 private:
  int64_t capacity_;
  std::vector<int64_t> lengths_;
  std::vector<at::Tensor> keys_, values_;  // one per layer; undefined for layers that this rank does not have
};

}  // namespace colossal::nn
