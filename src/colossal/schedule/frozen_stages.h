// The schedule of a pipeline whose first stages have nothing to train.
//
//   schedule = schedule::without_frozen_stages(std::move(schedule), 2);   // stages 0 and 1 run forward only
#pragma once
#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Removes the backward passes of the stages before `first_trained`, and the transfers of the gradients that these
/// stages would receive. Stage `first_trained` makes no gradient of its input. The other steps keep their order. A
/// send is removed together with its receive, so a schedule that passed check() still has no deadlock.
Schedule without_frozen_stages(Schedule schedule, int first_trained);

}  // namespace colossal::schedule
