#include "colossal/schedule/frozen_stages.h"

#include <vector>

namespace colossal::schedule {

Schedule without_frozen_stages(Schedule schedule, int first_trained) {
  for (int rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank)
    std::erase_if(schedule.ranks[rank], [&](const PipelineOp& step) {
      switch (step.action) {
        case Action::Backward:
        case Action::BackwardInput:
        case Action::BackwardWeight:
        case Action::ReceiveBackward:
          return schedule.placement.stage_of(rank, step.chunk) < first_trained;
        case Action::SendBackward:  // sends the gradient of its input, which the previous stage would receive
          return schedule.placement.stage_of(rank, step.chunk) <= first_trained;
        default:
          return false;
      }
    });
  return schedule;
}

}  // namespace colossal::schedule
