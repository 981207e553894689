// Where sends and receives go in a schedule of compute steps.
#pragma once
#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Inserts transfers, Reduce and Update into lists of compute steps. A hand-over between two chunks of one rank needs
/// no transfer.
///
/// Rule: put all compute steps of all ranks into one order (by their times at equal costs) and every message directly
///       behind the step that makes it; a rank's list is its part of that order. So a Send follows the compute step
///       that made it, with at most receives between them, and a Receive stands where the message is sent: behind the
///       steps that the receiver begins before, at the latest right before the step that needs it.
///
/// Why: on each pair of ranks both sides see the messages in the same order. And nothing locks up even if every
///      transfer blocks until the other side comes to it: of what is not done yet, the first in the common order can go
///      on at all its ranks.
///
/// Reduce follows a chunk's last weight gradients and the transfers behind it. With two pipes a chunk's copies meet in
/// it, so the Reduces then come last, in the order of their stages, which is the same on both ranks. Update ends the
/// list.
void add_transfers(Schedule& schedule);

}  // namespace colossal::schedule
