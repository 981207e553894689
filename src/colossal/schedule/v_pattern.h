// Building blocks of V-schedules, in which each rank has two chunks of the model. A block is one micro-batch's steps on
// a grid of equal time slots; the next micro-batch repeats it six slots later.
#pragma once
#include <vector>

#include "colossal/schedule/list_scheduler.h"

namespace colossal::schedule {

/// The number of slots from one rank to the next, on the way down (from rank 0 to the last) and on the way up. A
/// micro-batch passes down and up; its gradient then passes down and up again. Each chunk has half of the rank's
/// layers. With n ranks, a rank has the live activations of about (down + up) / 3 * n half micro-batches; 1F1B has n
/// whole ones. {1,1} thus needs a third of the activation memory of 1F1B, {2,1} half, {4,2} as much.
struct Slopes {
  int down, up;
};

/// Returns plans with these slopes and waits of 0 to 5 slots at each of the three turns (last rank, rank 0, last rank).
/// No two forwards or backwards of a rank share a slot, also after the block is repeated. Returns at most `max_plans`
/// plans, those with the least waiting first, and none with more than 8 slots of waiting in total; empty if no plan
/// fits.
/// See: Pipeline Parallelism with Controllable Memory, arXiv:2405.15362, section 3.
std::vector<Plan> v_plans(int ranks, Slopes slopes, size_t max_plans);

/// The choice of the free slot after a BackwardInput in which its weight gradients (BackwardWeight) are computed.
enum class Weights {
  FirstFree,     ///< the next free slot; there are more of them at the start, before all blocks overlap
  FirstOfBlock,  ///< the next of the two slots in six that the repeated block does not use
};

/// Repeats the plan for every micro-batch. Returns each rank's steps in the order of their slots. The times of the
/// slots are not part of the result: a step that can start earlier, does.
Lists repeat(const Plan& plan, int micro_batches, Weights weights);

}  // namespace colossal::schedule
