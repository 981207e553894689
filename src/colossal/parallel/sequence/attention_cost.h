// What a mode of sequence parallelism costs: traffic, memory and work of the attention of one layer, by formula and as
// measured.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/parallel/sequence/config.h"

namespace colossal::parallel {

/// Causal attention in fp32 of rows of one document.
struct AttentionSizes {
  int64_t batch = 1, tokens = 1024;
  int64_t heads = 8, kv_heads = 8, head_dim = 16;
};

/// Of one rank.
struct AttentionCost {
  double forward = 0, backward = 0;  ///< elements sent (Group's convention)
  double calls = 0;                  ///< of both; a send and a receive are two
  /// Kept from forward for backward beside its q, k and v and the result, which are the projections'
  double activation_bytes = 0;
  double operations = 0;  ///< of both: products and sums of scores and values that the mask lets through
};

/// Every mode that `ranks` > 1 ranks can form; usp with pairs, of more than two ranks.
std::vector<SequenceConfig> sequence_modes(int64_t ranks);

/// "usp of pairs"
std::string mode_name(const SequenceConfig& config);

/// By the formulas of docs/sequence-parallel.md, for tokens that divide by 2 ranks, and kv heads by the ranks that
/// exchange heads.
AttentionCost published_cost(const SequenceConfig& config, const AttentionSizes& sizes);

/// The attention itself, forward and backward once on random numbers, a thread a rank; an element of the result for
/// each rank.
/// Errors ("parallel"): heads that the mode cannot exchange, fewer tokens than ranks.
std::vector<AttentionCost> measured_cost(const SequenceConfig& config, const AttentionSizes& sizes);

}  // namespace colossal::parallel
