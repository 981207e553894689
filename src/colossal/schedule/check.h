// Proves that a schedule can be run, whoever made it.
#pragma once
#include "colossal/schedule/schedule.h"

namespace colossal::schedule {

/// Proves about a whole schedule (compute steps, transfers, Reduce, Update):
///   - each micro-batch passes each stage of its pipe once forward and once backward (Backward, or BackwardInput and
///     then BackwardWeight);
///   - each step's input is there: made by this rank or received before; what other ranks need is sent once, after it
///     is made;
///   - on each ordered pair of ranks the k-th receive takes the k-th send, whichever of hidden states and gradients
///     they are;
///   - nothing locks up when every transfer blocks until both sides have come to it;
///   - with a memory limit, no rank ever holds more live activations (live_change);
///   - each chunk is reduced once, after its last backward, and Update comes once, last.
/// Errors ("pipeline"): the first rule that is broken, with rank and step.
void check(const Schedule& schedule, double memory_limit = 0, double weight_share = 0.5);

/// Whether every chunk does its weight gradients in the order of the micro-batches: their sums are then bitwise those
/// of one process.
bool accumulates_in_order(const Schedule& schedule);

}  // namespace colossal::schedule
