// What decoding keeps of the tokens seen so far, and how sequences of unequal lengths share a batch.
//
//   nn::KvCache cache(1024);                                                  // room for 1024 tokens a sequence
//   nn::Step step{.positions = ..., .sequences = {{5, 3}}, .cache = &cache};  // a row of 8 tokens: two prompts
//   model.forward(1, pass, result);                                           // layers append, the runner advances
//   step.sequences = {{1, 1}};                                                // then a row of 2 tokens: one of each
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace colossal::ops {
struct Pages;          // ops/paged_attention.h
struct PagedSequence;  // ops/paged_attention.h
}  // namespace colossal::ops

namespace colossal::nn {

struct Step;

/// How each row of a batch [B, S] is cut into sequences, which do not see one another. All rows are cut alike; several
/// prompts of unequal lengths are one row, B = 1. These are runs on the host: nothing waits for a device, and no mask
/// is made of them. (Documents, in contrast, are data: a tensor, other borders in each row.)
struct Sequences {
  std::vector<int64_t> lengths;  ///< tokens of each, one behind the other; empty: a row is one sequence

  /// The lengths in a row of `tokens`. Errors: lengths that are negative or do not add up to it.
  std::vector<int64_t> in(int64_t tokens) const;
};

/// `size` positions of a sequence: first, first + stride, first + 2 stride and so on.
struct KeyPositions {
  int64_t first, size, stride = 1;
  bool operator==(const KeyPositions&) const = default;
};

/// Of one row: pages that hold the step's own tokens already, and of each sequence which are its, with those that it
/// held before. The cache's, until its next step.
struct PagedKeys {
  const ops::Pages* pages = nullptr;
  const std::vector<ops::PagedSequence>* sequences = nullptr;
};

/// What the queries of a layer attend to: keys and values of `sequences` sequences, those of row 0 first. The last of
/// them are the step's own.
struct KeysValues {
  at::Tensor k, v;  ///< [sequences, T, N_kv, D]
  /// Number of keys of each sequence: its first lengths[i] are its own, the rest are any finite numbers
  std::vector<int64_t> lengths;
  /// Where ranks share what is held: the positions of the keys here, the same in every sequence, ascending. The step's
  /// own are those that this rank keeps, which may be none. Not given: the rank has all keys
  std::optional<std::vector<KeyPositions>> part{};
  PagedKeys paged{};  ///< instead of all the others
};

/// Keys and values of every attention layer of a rank. A layer appends and attends to what it is given back; how that
/// is stored (one block a sequence, pages) is the cache's affair, and which sequences those of a step are is agreed
/// between it and whoever runs the model. It learns numbers of rows, heads and features, dtype and device from what is
/// appended.
class AttentionCache {
 public:
  virtual ~AttentionCache() = default;
  /// Puts k and v [B, S, N_kv, D] of `step`, those of its tokens that the rank has (step.sequences, step.cut), behind
  /// what `layer` (attention layers are numbered from 0) holds of their sequences, and returns all of that. The tensors
  /// may be views, which the next append changes.
  /// Errors: no more room; another number of rows or sequences than before; a cut that the cache does not know how to
  /// keep.
  virtual KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const Step& step) = 0;
  /// Called once after every layer has appended `step`, of rows of `tokens` tokens, by whoever runs the model
  /// (distributed::DistributedModel::forward).
  virtual void advance(const Step& step, int64_t tokens) = 0;
  /// Tokens held of each sequence of a row. Empty before the first step.
  virtual const std::vector<int64_t>& lengths() const = 0;
};

}  // namespace colossal::nn
