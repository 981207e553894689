// Which memory is alive at each step of a schedule, and what takes the memory of another tensor.
//
//   const Timeline timeline = timeline_of(graph, schedule);
//   std::printf("%lld bytes\n", timeline.peak);
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "colossal/auto_chunk/schedule.h"

namespace colossal::auto_chunk {

/// What happens inside of a loop, the same for each block.
struct BlockTimeline {
  int64_t peak = 0;                     ///< bytes that are alive at most, besides whole tensors
  std::vector<bool> overwrites;         ///< of each node of the loop: the result takes the memory of operand 0
  std::vector<std::vector<int>> freed;  ///< nodes whose blocks no later node reads
  std::vector<int> results;             ///< results_of()
  std::map<int, int> over;              ///< results that take the memory of a whole tensor that the loop reads last
};

/// The memory of a pass: inputs, what operators make, not parameters and constants.
struct Timeline {
  std::vector<int64_t> live;            ///< bytes while a step runs
  std::vector<int64_t> left;            ///< bytes after it
  std::vector<bool> overwrites;         ///< of each step: the node's result takes the memory of operand 0
  std::vector<std::vector<int>> freed;  ///< nodes whose results nothing reads after the step
  std::vector<BlockTimeline> loops;     ///< of Schedule::loops
  int64_t peak = 0;
};

Timeline timeline_of(const ChunkGraph& graph, const Schedule& schedule);

}  // namespace colossal::auto_chunk
