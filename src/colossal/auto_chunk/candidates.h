// Loops that could run a part of a schedule in less memory.
//
//   for (const Candidate& c : candidates_at(graph, schedule, timeline, fullest)) ...
#pragma once
#include <cstdint>
#include <vector>

#include "colossal/auto_chunk/timeline.h"

namespace colossal::auto_chunk {

/// A loop in place of the steps first .. last.
struct Candidate {
  Loop loop;
  int first = 0, last = 0;
  int64_t peak = 0;    ///< largest number of bytes alive in these steps
  int64_t around = 0;  ///< the same with the steps before and after, which tells whether the loop should be longer
  int64_t inside = 0;  ///< bytes alive while the loop runs; later loops may need less before it
  double seconds = 0;  ///< predicted time that it adds
};

/// Returns loops around step `seed`, a node: each grows both ways from it along a free dimension of the node's result,
/// to steps before and behind which no more memory is alive than nearer to it. Operators between its ends that do not
/// depend on the dimension run before the loop. A result that they read and the loop cuts is made twice, or before the
/// loop. Only loops with a smaller peak than the steps have.
///
/// Cost: growth is bounded by `reach` steps on each side.
std::vector<Candidate> candidates_at(const ChunkGraph& graph, const Schedule& schedule, const Timeline& timeline,
                                     int seed, int reach = 40);

/// Returns sizes of blocks to choose from, the largest first: the halves, quarters, .. of the dimension.
std::vector<int64_t> block_sizes(int64_t extent);

/// Returns the time that a loop adds, in seconds of a machine that moves 1e10 bytes and starts 2e5 operators a second:
/// the operators of all blocks but the first, what they read whole again, results copied to their places, and results
/// made twice. Fewer blocks never cost more.
double added_seconds(const ChunkGraph& graph, const Loop& loop, const BlockTimeline& inside);

}  // namespace colossal::auto_chunk
