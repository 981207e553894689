// Pyramid attention broadcast (arXiv:2408.12588): a drawing that computes attention only in some of its steps.
//
//   const AttentionBroadcast broadcast;                       // every 2nd, 4th and 6th step
//   reuse.begin_pass(broadcast.uses(/*step=*/7, /*steps=*/20));
//
// Outputs of attention change little from step to step in the middle of a drawing: those over the places of a frame
// most, those of captions least. The result is approximate.
#pragma once
#include <cstdint>

#include "colossal/nn/attention_reuse.h"

namespace colossal::diffusion {

/// In which steps each kind of attention is computed. Between `begin` and `end` these are the first step, and every
/// `space`-th, `time`-th or `caption`-th one after it. The steps between them reuse its outputs. Before and after that
/// range all steps compute.
struct AttentionBroadcast {
  int64_t space = 2, time = 4, caption = 6;  ///< steps that share an output; 1 = none do
  int64_t begin = 15, end = 85;              ///< the range, in percent of the steps; `end` is not within

  /// Returns true if a step, from 0, reuses the outputs of a step before it.
  bool reuses(nn::AttentionKind kind, int64_t step, int64_t steps) const;
  /// Returns what a step does with the outputs of each kind. Those that no later step reuses are not kept.
  nn::AttentionUses uses(int64_t step, int64_t steps) const;
};

}  // namespace colossal::diffusion
