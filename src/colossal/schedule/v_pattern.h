// Building blocks of V-schedules: one micro-batch's steps on a grid of equal slots, repeated every six.
#pragma once
#include <vector>

#include "colossal/schedule/list_scheduler.h"

namespace colossal::schedule {

/// Slots from one rank to the next, in the order in which a micro-batch goes: down, up, and with its gradient down and
/// up again. A rank's live activations are (down + up) / 3 of half a micro-batch a rank, so {1,1} needs a third of
/// 1F1B's, {2,1} half, {4,2} as much.
struct Slopes {
  int down, up;
};

/// Plans with these slopes and waits of 0 to 5 slots at each of the three turns in which no two steps of a rank fall
/// into one slot: at most `most`, the least waiting first, and none of more than 8 slots' waiting.
/// See: Pipeline Parallelism with Controllable Memory, arXiv:2405.15362, section 3.
std::vector<Plan> v_plans(int ranks, Slopes slopes, size_t most);

/// Where weight gradients go in the free slots behind their BackwardInput.
enum class Weights {
  FirstFree,     ///< the next slot that is free: early in the list there are more
  FirstOfBlock,  ///< the next of the two slots that the repeated block leaves free
};

/// The plan for every micro-batch, each rank's steps in the order of their slots. Without the slots' times: what can
/// start earlier, does.
Lists repeat(const Plan& plan, int micro_batches, Weights weights);

}  // namespace colossal::schedule
