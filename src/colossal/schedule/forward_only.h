// Forward passes alone: evaluation and decoding.
#pragma once
#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Returns a schedule in which every micro-batch passes once through the stages of pipe 0, with transfers. The order
/// is a wave front: among the steps that can run at once, the deepest stage comes first. On each pair of ranks,
/// receives and sends have the same order. There is no Reduce and no Update.
Schedule forward_only(const Placement& placement, int micro_batches);

}  // namespace colossal::schedule
