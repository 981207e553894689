// AutoChunk: finds the operators of a pass that run in a loop over blocks, so that its memory stays within a budget
// (Zhao et al. 2024, arXiv:2401.10652). The planner knows no model: it reads a traced graph.
//
//   const ChunkGraph graph(traced, {.overwritten = {true, true}});
//   const ChunkPlanner planner(graph);
//   const PlannedChunks planned = planner.plan(4LL << 30);            // throws if it is below planner.smallest_peak()
//   const auto out = auto_chunk::run(graph, schedule_of(graph, planned.plan), {s, z});
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/auto_chunk/chunk_plan.h"
#include "colossal/auto_chunk/schedule.h"

namespace colossal::auto_chunk {

/// A plan and what it is predicted to cost.
struct PlannedChunks {
  ChunkPlan plan;
  int64_t peak = 0;    ///< bytes of inputs and results that are alive at most
  double seconds = 0;  ///< time that the loops add (added_seconds())
};

/// Makes plans of one graph.
///
/// A round finds candidates around the fullest operators. Those whose steps overlap are a cluster, of which one may be
/// taken: a variable of plan::solve_choices() with the choices "none" and (region, dimension, size). The choices of the
/// smallest peaks are the list of steps of the next round, which finds loops in what the first ones left before them
/// and chooses the sizes of their blocks again.
/// Of all plans of all rounds those remain that no other beats in both bytes and time. So a larger budget is never
/// predicted slower.
class ChunkPlanner {
 public:
  /// Finds the plans. Cost: for a block of a hundred operators two to six seconds on one core, for longer dimensions
  /// more, because they have more sizes of blocks.
  explicit ChunkPlanner(const ChunkGraph& graph);

  /// Returns the fastest plan of which at most `budget` bytes are alive; 0 = no limit, and no loop.
  /// Errors ("auto_chunk"): the budget is below smallest_peak().
  PlannedChunks plan(int64_t budget) const;
  /// Returns whether a plan fits.
  bool fits(int64_t budget) const { return budget == 0 || budget >= smallest_peak(); }
  int64_t smallest_peak() const { return plans_.back().peak; }
  /// Returns the plans, the fastest first, each with a smaller peak than the one before.
  const std::vector<PlannedChunks>& plans() const { return plans_; }

 private:
  std::vector<PlannedChunks> plans_;
};

}  // namespace colossal::auto_chunk
