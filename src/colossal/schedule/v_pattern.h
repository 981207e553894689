// Building blocks of V-schedules: one micro-batch's steps on a grid of equal slots, repeated every six.
#pragma once
#include <vector>

#include "colossal/schedule/list_scheduler.h"

namespace colossal::schedule {

/// The number of slots from one rank to the next, on the way down and on the way up. A micro-batch passes down and up;
/// its gradient then passes down and up again. A rank's live activations are (down + up) / 3 times half a micro-batch
/// per rank of the pipeline. {1,1} thus needs a third of 1F1B's, {2,1} half, {4,2} the same.
struct Slopes {
  int down, up;
};

/// Returns plans with these slopes and waits of 0 to 5 slots at each of the three turns. No two steps of a rank share
/// a slot. Returns at most `most` plans, those with the least waiting first, and none with more than 8 slots of
/// waiting in total. See: Pipeline Parallelism with Controllable Memory, arXiv:2405.15362, section 3.
std::vector<Plan> v_plans(int ranks, Slopes slopes, size_t most);

/// The free slots after a BackwardInput that its weight gradients may use.
enum class Weights {
  FirstFree,     ///< the next free slot; early in the list there are more of them
  FirstOfBlock,  ///< the next of the two slots that the repeated block does not use
};

/// Repeats the plan for every micro-batch. Returns each rank's steps in the order of their slots, without the slots'
/// times: a step that can start earlier, does.
Lists repeat(const Plan& plan, int micro_batches, Weights weights);

}  // namespace colossal::schedule
