// A greedy scheduler: what can start first, starts first. The searched families run it with several policies
// (search.h).
#pragma once
#include <functional>
#include <vector>

#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// Part of a micro-batch's activations that BackwardInput leaves to BackwardWeight.
inline constexpr double kWeightShare = 0.5;

/// Times at which a schedule would like its steps to start, of micro-batch 0 by [rank][chunk]; every further one
/// `interval` later.
struct Plan {
  std::vector<std::vector<double>> forward, backward;
  double interval = 0;
};

struct Policy {
  enum class Order { OldestMicroBatch, DeepestStage };

  bool splits_backward = true;
  /// Live activations of a rank, one being a micro-batch on all its chunks of a pipe; at least 1, 0: none
  double limit = 0;
  /// By rank: micro-batches that a chunk may have in flight; for pipes with one chunk a rank; empty: any
  std::vector<int> in_flight;
  Order backwards = Order::OldestMicroBatch;  ///< which of several backwards goes first
  /// How long a rank rather idles for a backward on its way than starts a forward or weight gradients
  double patience = 0;
  /// How long it rather idles for a forward or backward than starts weight gradients
  double weight_patience = 0;
  const Plan* plan = nullptr;  ///< decides between forwards and backwards where given
};

/// Returns the compute steps of every rank, each rank's in the order in which they start.
///
/// Among the steps that a rank could start first, it prefers backward to forward, and forward to weight gradients.
/// Among several forwards it prefers the deepest stage, so that a micro-batch in flight continues before a new one
/// enters. A forward is held back unless its activations, and those of one micro-batch on each later chunk of the rank,
/// fit the limit. The oldest micro-batch therefore always finds room, and nothing locks up. Every chunk sees its
/// micro-batches in order, in each direction.
Lists list_schedule(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy);

}  // namespace colossal::schedule
