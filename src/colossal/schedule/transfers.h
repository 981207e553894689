// Adds sends and receives to a schedule of compute steps.
#pragma once
#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Inserts transfers, Reduce and Update into lists of compute steps. A tensor that passes between two chunks of
/// one rank needs no transfer.
///
/// Rule: all compute steps of all ranks are put into one order (by their times at equal costs), and every message
///       directly after the step that makes it. The list of a rank is its part of that order. A Send thus follows the
///       compute step that made its tensor, with at most receives between them. A Receive is placed at the time of the
///       send: after the steps that the receiver begins before, at the latest right before the step that needs it.
///
/// Why: on each pair of ranks both sides see the messages in the same order. There is no deadlock even if every
///      transfer blocks until the other side reaches it: of the remaining steps, the first in the common order can
///      proceed on all its ranks.
///
/// Reduce follows a chunk's last weight gradients and the transfers after them. A Reduce with two pipes involves both
/// copies of a chunk. The Reduces therefore come last, in the order of their stages, which is the same on both ranks.
/// Update ends the list.
void add_transfers(Schedule& schedule);

}  // namespace colossal::schedule
