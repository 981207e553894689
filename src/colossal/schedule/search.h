// Plans the schedules of families without a closed form, and of unequal costs: a greedy scheduler, in which the step
// that can start first starts first, runs with several policies, and the best of its schedules is selected.
#pragma once
#include <vector>

#include "colossal/schedule/make.h"

namespace colossal::schedule {

/// Share of a micro-batch's activations that BackwardInput keeps for BackwardWeight.
inline constexpr double kWeightShare = 0.5;

/// Preferred start times of the steps of micro-batch 0, by [rank][chunk]. Each later micro-batch starts `interval`
/// later.
struct StartTimes {
  std::vector<std::vector<double>> forward, backward;
  double interval = 0;
};

struct Policy {
  enum class Order { OldestMicroBatch, DeepestStage };

  bool splits_backward = true;
  /// limit of a rank's live activations, at least 1; the unit is one micro-batch on all of its chunks of a pipe; 0 =
  /// no limit
  double limit = 0;
  /// number of micro-batches that a chunk may have in flight, by rank, for pipes with one chunk per rank; empty = no
  /// limit
  std::vector<int> in_flight;
  Order backwards = Order::OldestMicroBatch;  ///< order of several possible backwards
  /// time for which a rank idles for a backward in transit before it starts a forward or weight gradients
  double patience = 0;
  /// time for which a rank idles for a forward or backward before it starts weight gradients
  double weight_patience = 0;
  const StartTimes* start_times = nullptr;  ///< times that decide between forwards and backwards; null = none
};

/// Returns the compute steps of every rank, each rank's in the order in which they start.
///
/// Among the steps that a rank could start first, it prefers backward to forward, and forward to weight gradients.
/// Among several forwards it prefers the deepest stage, so that a micro-batch in flight continues before a new one
/// enters. A forward is delayed unless its activations, and those of one micro-batch on each later chunk of the rank,
/// fit the limit. The oldest micro-batch therefore always finds room, and there is no deadlock. Every chunk processes
/// its micro-batches in order, in each direction.
Lists list_schedule(const Placement& placement, int micro_batches, const Costs& costs, const Policy& policy);

/// Takes proposals, times them and keeps the best. The criteria are, in this order: the smallest longest span of a
/// rank, the earliest end, the earliest proposal. The same proposals give the same result everywhere, because neither
/// a clock nor chance is used.
class Search {
 public:
  /// `limit`: maximum number of live activations of a rank; a proposal that holds more is dropped; 0 = no limit.
  Search(const Placement& placement, const Options& options, double limit);

  /// Proposes the schedules that list_schedule makes with this policy within the limit: one for the costs, one for the
  /// costs without transfers, and one for equally long steps. With equally long steps the ranks stay synchronous, and
  /// that order is often better at other costs too.
  void propose(const Policy& policy);
  void propose(Lists lists);  ///< drops lists with a deadlock, too
  Lists best() &&;

 private:
  const Placement placement_;
  const Options& options_;
  const double limit_;
  Lists best_;
  double best_span_ = 0, best_end_ = 0;
};

}  // namespace colossal::schedule
