// Sizes of an attention layer, and how its heads are split over the ranks of a tensor-parallel group.
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/tensor/shard_spec.h"

namespace colossal::nn {

/// Logical sizes. kv_heads < heads means grouped queries: heads / kv_heads query heads share one key and value head.
struct AttentionShape {
  int64_t hidden, heads, kv_heads, head_dim;
  /// Features of a head of v; 0 = head_dim. Values that differ come from Layers::latent_heads(), not from heads()
  int64_t v_head_dim = 0;
  /// Features of the state from which Layers::cross_heads() projects k and v; 0 = hidden
  int64_t source_hidden = 0;

  int64_t source() const { return source_hidden == 0 ? hidden : source_hidden; }
  int64_t value_dim() const { return v_head_dim == 0 ? head_dim : v_head_dim; }
  /// Returns the shape of heads that have the features of v, such as the results of attention.
  AttentionShape of_values() const { return {hidden, heads, kv_heads, value_dim()}; }
};

/// The heads that one of `parts` ranks computes. Heads stay whole, and a query head stays on a rank with its kv head:
///   parts > kv_heads, kv_heads divides parts, and parts divides heads: each kv head is replicated on parts / kv_heads
///     neighbours, which split its query heads;
///   otherwise: kv groups are split over the ranks, and the last ranks are padded with heads of zeros (25 heads on
///     2 ranks: 13 and 12 + 1 padded). A padded head stays zero because its gradients are exactly zero.
struct HeadSplit {
  tensor::Segment q, kv;  ///< segments of the fused projection [q | k | v], in rows
  int64_t heads_local, kv_heads_local;
  int64_t kv_copies;  ///< number of neighbours that hold the same kv heads; 1 = not replicated

  /// Errors ("model"): heads that are not a positive multiple of kv_heads; a head_dim below 1.
  HeadSplit(const AttentionShape& shape, int64_t parts);
  std::vector<tensor::Segment> fused() const { return {q, kv, kv}; }
};

}  // namespace colossal::nn
