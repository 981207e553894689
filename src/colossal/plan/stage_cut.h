// Cuts a chain of blocks into pipeline stages by Alpa's rule (arXiv:2201.12023, section 5.2), for stages with equal
// numbers of ranks.
//
//   const auto cut = plan::cut_stages({.blocks = 12, .stages = 4, .micro_batches = 8,
//                                      .seconds = [&](int64_t, int64_t from, int64_t to) { return sum(from, to); }});
//   if (cut) config.parallel.pipeline.layers_per_stage = cut->layers;
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace colossal::plan {

/// A chain of blocks and what a stage with the blocks [from, to) costs.
struct StageProblem {
  int64_t blocks = 0;
  int64_t stages = 1;
  int64_t micro_batches = 1;
  /// seconds of one micro-batch in the stage, forward and backward; not negative
  std::function<double(int64_t stage, int64_t from, int64_t to)> seconds;
  /// whether the stage fits into the memory of a rank, with its micro-batches in flight; empty = every stage fits
  std::function<bool(int64_t stage, int64_t from, int64_t to)> fits = {};
};

struct StageCut {
  std::vector<int64_t> layers;  ///< blocks of each stage, in the order of the chain
  double seconds = 0;           ///< step time: sum of the stages + (micro_batches - 1) * slowest stage
};

/// Returns the cut with the least seconds; nothing if no cut fits. Each stage has at least one block, except the first
/// and the last of a pipeline of several stages, which have the embedding and the head. Among equal cuts the one that
/// fills the early stages wins.
///
/// The seconds of a step have a sum and a maximum, so the dynamic programme keeps every pair (sum, maximum) that no
/// other one beats in both. The result is exact for any `seconds`.
/// Cost: stages * blocks^2 * pairs; pairs are few for stages whose sums are equal.
/// Errors ("plan"): no block, no stage, or no micro-batch.
std::optional<StageCut> cut_stages(const StageProblem& problem);

}  // namespace colossal::plan
