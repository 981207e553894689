// A greedy scheduler: what can start first, starts first. The searched families are this with different policies.
#pragma once
#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// Part of a micro-batch's activations that BackwardInput leaves to BackwardWeight.
inline constexpr double kWeightShare = 0.5;

struct Policy {
  bool splits_backward = true;
  double limit = 0;        ///< live activations of a rank, one being a micro-batch on all the chunks of a pipe that the rank holds; at least 1
  int chunk_limit = 0;     ///< micro-batches that one chunk may have in flight; 0: any number
};

/// The compute steps of every rank, each rank's in the order in which they start.
///
/// Of the steps that a rank could start first: backward before forward before weight gradients; of several forwards the deepest stage, so
/// that a micro-batch on its way goes on before a new one enters. A forward is held back unless its activations and those of one
/// micro-batch on each later chunk of the rank fit the limit: so the oldest micro-batch always finds room and nothing locks up.
/// Every chunk sees its micro-batches in order, in each direction.
Lists list_schedule(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy);

}  // namespace colossal::schedule
