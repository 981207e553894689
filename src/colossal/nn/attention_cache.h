// The interface of the KV cache for decoding, and how sequences of unequal lengths share a batch.
//
//   nn::KvCache cache(1024);                                                  // room for 1024 tokens a sequence
//   nn::ForwardContext step{.positions = ..., .parts = {nn::Decoding{&cache}}};
//   step.parts.set(nn::Sequences{{5, 3}});                                    // a row of 8 tokens: two prompts
//   model.forward(1, pass, result);                                           // layers append, the runner advances
//   step.parts.set(nn::Sequences{{1, 1}});                                    // then a row of 2 tokens: one of each
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace colossal::ops {
struct Pages;          // ops/attention/paged.h
struct PagedSequence;  // ops/attention/paged.h
}  // namespace colossal::ops

namespace colossal::nn {

struct ForwardContext;

/// Part of a ForwardContext: how each row of a batch [B, S] is split into sequences, which do not attend to each other,
/// e.g. prompts of unequal lengths in one row. Without it a row is one sequence. All rows are split alike;
/// several prompts of unequal lengths are one row, B = 1. The lengths are on the host, so no code waits for a device
/// and no mask is built from them. (Documents, in contrast, are data: a tensor with different borders in each row.)
struct Sequences {
  std::vector<int64_t> lengths;  ///< tokens of each sequence, in order; empty = a row is one sequence
  /// Length that rotary frequencies follow in each sequence, in tokens, if they depend on it; empty = the number of
  /// tokens of the longest sequence so far. With it, a sequence depends neither on others in the step nor on its chunks
  std::vector<int64_t> reach{};

  /// Returns the lengths of the sequences in a row of `tokens` tokens.
  /// Errors ("attention"): lengths that are negative or do not add up to `tokens`.
  std::vector<int64_t> in(int64_t tokens) const;
};

/// `size` positions of a sequence: first, first + stride, first + 2 stride and so on.
struct KeyPositions {
  int64_t first, size, stride = 1;
  bool operator==(const KeyPositions&) const = default;
};

/// Keys and values of one row in pages. The pages already contain the step's own tokens. `sequences` lists the pages of
/// each sequence and the number of tokens that it held before the step. Owned by the cache; valid until its next step.
struct PagedKeys {
  const ops::Pages* pages = nullptr;
  const std::vector<ops::PagedSequence>* sequences = nullptr;
};

/// Keys and values that the queries of a layer attend to. The sequences of row 0 come first. The last keys of each
/// sequence are the step's own.
struct KeysValues {
  at::Tensor k, v;  ///< [sequences, T, N_kv, D]
  /// Number of valid keys of each sequence: the first lengths[i] keys; the elements after them are arbitrary finite
  /// numbers
  std::vector<int64_t> lengths;
  /// Positions of the keys on this rank, if ranks share the cached tokens: the same in every sequence, ascending. They
  /// include the step's own tokens that this rank keeps, which may be none. No value = the rank has all keys
  std::optional<std::vector<KeyPositions>> part{};
  /// If set, the keys are in pages and k, v and lengths are not used. A `part` with an empty list then means that ranks
  /// share each sequence by pages
  PagedKeys paged{};
};

/// Keys and values of every attention layer of a rank. A layer appends its new keys and values and attends to what
/// append() returns. The cache decides how to store them (one tensor per layer, pages). The cache and the caller that
/// runs the model agree on which sequences are in a step. The numbers of rows, heads and features, the dtype and the
/// device follow from what is appended.
class AttentionCache {
 public:
  virtual ~AttentionCache() = default;
  /// Appends k and v [B, S, N_kv, D] to what `layer` holds of their sequences, and returns all of it. k and v are of
  /// the tokens of `step` that this rank has (sequences_of(step), step.cut). Attention layers are numbered from 0. The
  /// tensors may be views, which the next append changes.
  /// Errors: no more room; another number of rows or sequences than before; a cut that the cache cannot store.
  virtual KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const ForwardContext& step) = 0;
  /// Returns true if the cache can store values that are their keys once (nn/latent_heads.h): append() then also takes
  /// an undefined v, in every step of a layer, and what it returns as v are the keys.
  virtual bool joins_values() const { return false; }
  /// Ends a step of rows of `tokens` tokens. The caller that runs the model (distributed::DistributedModel::forward)
  /// calls it once, after every layer has appended.
  virtual void advance(const ForwardContext& step, int64_t tokens) = 0;
  /// Returns the number of tokens held of each sequence of a row. Empty before the first step.
  virtual const std::vector<int64_t>& lengths() const = 0;
};

/// Part of a ForwardContext: the keys and values of earlier tokens. Attention reads them too and appends those of this
/// step.
struct Decoding {
  AttentionCache* cache;  ///< null = none
};

/// Returns the cache of a step that decodes; null = none.
AttentionCache* cache_of(const ForwardContext& step);
/// Returns how the rows of a step are split into sequences.
const Sequences& sequences_of(const ForwardContext& step);

}  // namespace colossal::nn
