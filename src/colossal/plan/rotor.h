// Chooses which stages of a chain are computed again in backward, so that a step is as fast as a memory budget allows.
//
//   plan::Chain chain;
//   for (int i = 0; i < 12; ++i)
//     chain.stages.push_back({.forward = 1, .backward = 2, .input = 64 << 20, .saved = 900 << 20,
//                             .backward_temporary = 64 << 20});
//   chain.stages.push_back({.input = 64 << 20, .saved = 3 << 28, .backward_temporary = 3 << 28});   // the loss
//   const auto best = plan::plan_recomputation(chain, int64_t{6} << 30);          // best->segments, best->peak
//
// The method is the dynamic programme of Rotor (Beaumont et al. 2019, arXiv:1911.13214) for heterogeneous chains, with
// one more choice: the input of a segment may wait in host memory.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "colossal/base/segments.h"

namespace colossal::plan {

/// One stage of a chain: a block, or the loss. Times are in any one unit; sizes are bytes. The output of a stage is the
/// input of the next one, and a gradient has the size of its tensor.
struct ChainStage {
  double forward = 0, backward = 0;
  int64_t input = 0;
  int64_t saved = 0;              ///< bytes that forward keeps for backward, with the output
  int64_t forward_temporary = 0;  ///< the most in addition to input and output, if forward keeps nothing
  int64_t saved_temporary = 0;    ///< the most in addition to input and `saved`, if forward keeps everything
  /// the most in addition to input, `saved` and the gradient of the output in backward; includes the gradient of the
  /// input. For the loss this is the gradient of the logits, often the largest tensor of a step
  int64_t backward_temporary = 0;
};

/// Stages in order. The last one is the loss, or whatever ends the chain; it is never computed again.
struct Chain {
  std::vector<ChainStage> stages;
  int64_t output = 0;  ///< bytes of the gradient that backward starts from
  /// Time to copy a byte to the host or back; 0 = inputs stay on the device. A copy counts in full, as if nothing
  /// computed in the meantime: other streams use the same link, so an overlap is no promise
  double host_time_per_byte = 0;
  /// Bytes that each further level of segments within segments keeps while it is computed again. Autograd holds the
  /// output of a segment and its gradient until its backward pass returns.
  int64_t level = 0;
};

/// Time and memory of a step with some segments.
struct ChainRun {
  double time = 0;
  int64_t peak = 0;  ///< the most bytes of the chain at any moment, with the input of its first stage
};

/// Segments and what they take.
struct RecomputationPlan : ChainRun {
  Segments segments;  ///< by number of the stage
};

/// Runs a step of the chain on paper: every forward and backward in its order, with what each has in memory.
/// `segments` must lie within the stages before the last one.
ChainRun run_chain(const Chain& chain, const Segments& segments);

/// The number of units in which the programme counts a budget. Sizes are rounded up, so a plan never takes more than
/// the budget; for each tensor that it holds it may leave up to one unit unused.
inline constexpr int64_t kSlots = 500;
/// Chains with more stages are planned in groups of consecutive ones.
inline constexpr int64_t kMaxStages = 128;
/// The most segments within each other. Autograd runs backward passes within each other on one thread up to a depth of
/// 60; each segment is one.
inline constexpr int64_t kMaxDepth = 50;

/// Returns the fastest plan whose peak is at most `budget`, up to the rounding to units. None = no plan fits, or only
/// plans with segments deeper than kMaxDepth. If everything fits, no segment is recomputed. Equal arguments give equal
/// plans on all machines. The peak includes Chain::level, which the programme does not know: its budget is lowered
/// until the plan fits.
/// Time: slots * stages^3 / 6 additions, twice that with a host: 2e8 for 128 stages, some 0.1 s. Memory: slots *
/// stages^2 * 4 bytes, 33 MB for 128 stages.
std::optional<RecomputationPlan> plan_recomputation(const Chain& chain, int64_t budget);

/// Returns a budget for which plan_recomputation() finds a plan, at most 1 % above the smallest one.
int64_t smallest_budget(const Chain& chain);

}  // namespace colossal::plan
