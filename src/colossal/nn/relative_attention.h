// Attention whose scores have a learned number added for each distance between a token and one that it sees, as T5 has
// it: Raffel et al. 2020, arXiv:1910.10683, section 2.1. Distances are put in buckets, narrow ones for neighbours and
// wider ones farther away.
//
//   const nn::RelativeBuckets buckets{.count = 32, .farthest = 128, .both_sides = true};
//   const at::Tensor bias = nn::lookup(table, buckets.of(6, 6).to(device)).permute({2, 0, 1});  // table [32, N_local]
//   const nn::Inside out = nn::biased_attention(heads, {.bias = bias});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/nn/layers.h"

namespace colossal::nn {

/// Which bucket a distance falls into: half of them hold one distance each, the others grow with the logarithm of the
/// distance up to `farthest`, from which on the last one serves.
struct RelativeBuckets {
  int64_t count = 32, farthest = 128;
  /// Half of the buckets are of later tokens; else all are of earlier ones, and what is later has that of distance 0
  bool both_sides = false;
  bool operator==(const RelativeBuckets&) const = default;

  /// [queries, keys] int64 on the CPU, where the queries are the last of the keys' tokens.
  /// Errors ("model"): counts that leave a bucket out, a `farthest` within the buckets of one distance each.
  at::Tensor of(int64_t queries, int64_t keys) const;
};

/// What is added to scores and what they leave out.
struct BiasedScores {
  at::Tensor bias{};    ///< [N_local, T, S] of a dtype that is rounded no coarser than q; undefined: none
  bool causal = false;  ///< a query sees no later token; the queries are the last of the keys' tokens
  /// [B_local, T] and [B_local, S] int64: a query sees the keys of its own document, and gives zeros where there are
  /// none; undefined: it sees all of them
  at::Tensor query_documents{}, key_documents{};
};

/// softmax(q k^T + bias) v of whole sequences, features [B_local, T, N_local D] for from_heads(): q is not scaled.
/// Written in LibTorch's operators, on every device and on meta: it keeps the weights [B_local, N_local, T, S] for
/// backward, which ops::attention does not.
Inside biased_attention(const Heads& heads, const BiasedScores& scores);

}  // namespace colossal::nn
