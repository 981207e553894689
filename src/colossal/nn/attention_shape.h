// Sizes of an attention layer, and how its heads are dealt out to the ranks of a tensor-parallel group.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/tensor/shard_spec.h"

namespace colossal::nn {

/// Logical sizes. `kv_heads` < `heads`: grouped queries, heads / kv_heads of them share one key and value head.
struct AttentionShape {
  int64_t hidden, heads, kv_heads, head_dim;
};

/// What one of `parts` ranks computes. Heads stay whole, and a query head stays with its kv head:
///   parts > kv_heads, and it divides: each kv head is replicated on parts / kv_heads neighbours, which share its query
///     heads;
///   otherwise: kv groups are dealt out, the last ranks padded with heads of zeros (25 heads on 2 ranks: 13 and 12 + 1
///     padded). A padded head stays zero: its gradients are exactly zero.
struct HeadSplit {
  tensor::Segment q, kv;  ///< segments of the fused projection [q | k | v], in rows
  int64_t heads_local, kv_heads_local;
  int64_t kv_copies;  ///< neighbours that hold the same kv heads; 1 = none

  /// Errors: heads that are no multiple of kv_heads.
  HeadSplit(const AttentionShape& shape, int64_t parts);
  std::vector<tensor::Segment> fused() const { return {q, kv, kv}; }
};

}  // namespace colossal::nn
