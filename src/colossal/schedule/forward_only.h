// Schedules of which all or the first stages run forward only: evaluation and decoding, and stages with nothing to
// train.
//
//   schedule = schedule::without_frozen_stages(std::move(schedule), 2);   // stages 0 and 1 run forward only
#pragma once
#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Returns a schedule in which every micro-batch passes once through the stages of pipe 0, with transfers. The order
/// is a wave front: among the steps that can run at once, the deepest stage comes first. On each pair of ranks,
/// receives and sends have the same order. There is no Reduce and no Update.
Schedule forward_only(const Placement& placement, int micro_batches);

/// Removes the backward passes of the stages before `first_trained`, and the transfers of the gradients that these
/// stages would receive. Stage `first_trained` makes no gradient of its input. The other steps keep their order. A
/// send is removed together with its receive, so a schedule that passed check() still has no deadlock.
Schedule without_frozen_stages(Schedule schedule, int first_trained);

}  // namespace colossal::schedule
