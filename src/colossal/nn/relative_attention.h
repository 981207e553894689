// Attention with learned relative position biases, as in T5: Raffel et al. 2020, arXiv:1910.10683, section 2.1. A
// learned value is added to the score for each distance between query and key. Distances are grouped into buckets,
// narrow ones for neighbours and wider ones farther away.
//
//   const nn::RelativeBuckets buckets{.count = 32, .max_distance = 128, .both_sides = true};
//   const at::Tensor bias = nn::lookup(table, buckets.of(6, 6).to(device)).permute({2, 0, 1});  // table [32, N_local]
//   const nn::Inside out = nn::biased_attention(heads, {.bias = bias});
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "colossal/nn/attention.h"
#include "colossal/nn/linear_layers.h"

namespace colossal::nn {

/// The mapping from distances to buckets. Half of the buckets hold one distance each. The others grow with the
/// logarithm of the distance up to `max_distance`; all distances from there on share the last bucket.
struct RelativeBuckets {
  int64_t count = 32, max_distance = 128;
  /// True = half of the buckets are for later tokens. False = all are for earlier tokens, and a later token has the
  /// bucket of distance 0
  bool both_sides = false;
  bool operator==(const RelativeBuckets&) const = default;

  /// Returns the bucket of each pair, [queries, keys] int64 on the CPU. The queries are the last of the keys' tokens.
  /// Errors ("model"): `count` below 2, or with both_sides below 4 or odd. `max_distance` not above the number of
  ///                   buckets of one side that hold one distance.
  at::Tensor of(int64_t queries, int64_t keys) const;
};

/// The bias that is added to scores, and the pairs that are masked.
struct BiasedScores {
  at::Tensor bias{};    ///< [N_local, T, S] of a dtype that rounds no coarser than the dtype of q; undefined = none
  bool causal = false;  ///< a query attends to no later token; the queries are the last of the keys' tokens
  /// Document ids, [B_local, T] and [B_local, S] int64. A query attends to the keys of its own document, and gives
  /// zeros if there are none. Both undefined = it attends to all keys
  at::Tensor query_documents{}, key_documents{};
};

/// Returns softmax(q k^T + bias) v of whole sequences, features [B_local, T, N_local D] for from_heads(). q is not
/// scaled. It keeps no scores for backward, which gives the bias its gradient all the same (ops::biased_attention).
Inside biased_attention(const Heads& heads, const BiasedScores& scores);

}  // namespace colossal::nn
