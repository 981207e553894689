// Proves that a schedule can be run, independent of the code that made it.
#pragma once
#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Proves the following rules for a whole schedule (compute steps, transfers, Reduce, Update):
///   - each micro-batch passes each stage of its pipe once forward and once backward (Backward, or BackwardInput and
///     then BackwardWeight);
///   - each step's input is available: made by this rank or received before; each result that another rank needs is
///     sent once, after it is made;
///   - on each ordered pair of ranks the k-th receive matches the k-th send; hidden states and gradients are counted
///     together;
///   - there is no deadlock even if every transfer blocks until both sides have reached it;
///   - with a memory limit, no rank ever holds more live activations (live_change);
///   - each chunk is reduced once, after its last backward, and Update occurs once, as the last step.
/// `memory_limit`: in the unit of live_change; 0 = no limit. `weight_share`: as for live_change.
/// Errors ("pipeline"): throws for the first rule that is broken, with rank and step.
void check(const Schedule& schedule, double memory_limit = 0, double weight_share = 0.5);

/// Returns true if every chunk computes its weight gradients in the order of the micro-batches. Their sums are then
/// bitwise equal to those of one process.
bool accumulates_in_order(const Schedule& schedule);

}  // namespace colossal::schedule
