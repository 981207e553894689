#include "colossal/schedule/forward_only.h"

#include <algorithm>
#include <vector>

namespace colossal::schedule {

Schedule forward_only(const Placement& placement, int micro_batches) {
  Schedule schedule{"forward-only", placement, micro_batches, Lists(placement.ranks())};
  const int stages = placement.stages();
  for (int tick = 0; tick < stages + micro_batches - 1; ++tick)
    for (int stage = std::min(tick, stages - 1); stage >= std::max(0, tick - micro_batches + 1); --stage) {
      const int micro_batch = tick - stage, rank = placement.rank_of(0, stage), chunk = placement.chunk_of(0, stage);
      schedule.ranks[rank].push_back({Action::Forward, micro_batch, chunk});
      if (stage + 1 == stages || placement.rank_of(0, stage + 1) == rank) continue;
      const int next = placement.rank_of(0, stage + 1);
      schedule.ranks[rank].push_back({Action::SendForward, micro_batch, chunk, next});
      schedule.ranks[next].push_back({Action::ReceiveForward, micro_batch, placement.chunk_of(0, stage + 1), rank});
    }
  return schedule;
}

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
