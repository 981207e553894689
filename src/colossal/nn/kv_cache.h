// The KV caches of decoding that keep the keys and values of a layer in one piece.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/nn/attention_cache.h"

namespace colossal::nn {

/// The cache with one contiguous piece of memory per sequence, for up to `capacity` tokens of each. append() returns
/// views.
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

/// Part of a ForwardContext: the number of tokens at the start of each row that the encoder of the model reads. 0 = the
/// encoder read them in an earlier step, and the cache holds what the decoder needs of them. Without it, it is the
/// number that the model's shape says (models::Task::source_of).
struct SourceTokens {
  int64_t count;
};

/// The cache for a model with an encoder. It holds keys and values: those for the source are appended once, those for
/// the target grow. A row is one sequence. Layers may append different numbers of tokens. Layers that attend to the
/// source append all of it in the first step and no tokens afterwards. lengths() and `capacity` count the tokens that
/// the decoder reads, the target.
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
