// Forward passes alone: evaluation and decoding.
#pragma once
#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Every micro-batch once through the stages of pipe 0, with transfers, in the order of a wave front: of those that can
/// run at once, the one that is furthest first. The order of receives on each pair of ranks is that of sends. Neither
/// Reduce nor Update.
Schedule forward_only(const Placement& placement, int micro_batches);

}  // namespace colossal::schedule
