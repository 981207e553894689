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
  /// Looks at the pass without loops. `graph` must outlive this.
  explicit ChunkPlanner(const ChunkGraph& graph);

  /// Returns the fastest plan of which at most `budget` bytes are alive; 0 = no limit, and no loop. The first budget
  /// that the pass without loops exceeds starts the search, which takes half a second to some seconds on one core for
  /// a block of a hundred operators. One thread may use a planner at a time.
  /// Errors ("auto_chunk"): the budget is below smallest_peak().
  PlannedChunks plan(int64_t budget) const;
  /// Returns the least bytes that a budget must have. Starts the search.
  int64_t smallest_peak() const { return plans().back().peak; }
  /// Returns the plans, the fastest first, each with a smaller peak than the one before. Starts the search.
  const std::vector<PlannedChunks>& plans() const;

 private:
  const ChunkGraph& graph_;
  PlannedChunks plain_;                       ///< no loop
  mutable std::vector<PlannedChunks> plans_;  ///< empty = not searched yet
};

}  // namespace colossal::auto_chunk
