// Times of a schedule's steps, computed here or measured in a run, and quantities derived from them.
#pragma once
#include <functional>
#include <vector>

#include "colossal/schedule/make.h"

namespace colossal::schedule {

struct Event {
  int rank;
  PipelineOp step;
  double begin, end;  ///< times of the step; of a send or receive, the message's time in transit
};

/// A schedule with times. simulate() makes it from costs, make_timeline() from measured events.
struct Timeline {
  std::vector<Event> events;  ///< events of rank 0 in its order, then of rank 1, ...
  int ranks = 0, chunks = 1;
  double makespan = 0;            ///< time from the first begin to the last end of a compute step
  std::vector<double> busy;       ///< time of each rank in compute steps
  std::vector<double> span;       ///< time of each rank from the begin of its first compute step to the end of its
                                  ///< last
  std::vector<double> peak_live;  ///< maximum number of live activations of each rank (live_change)
  int transfers = 0;              ///< number of messages sent

  /// Returns the idle time relative to ideal compute: (longest span - most busy time) / most busy time. Ranks may
  /// start and end at different times, because the next step fills these triangles. Only a rank's own span therefore
  /// counts, as in the zero-bubble papers.
  double bubble() const;
};

/// Returns the change that a step makes to the live activations of its rank; one unit is a micro-batch on all chunks
/// of a pipe that the rank holds. Forward adds pipes / chunks, Backward removes as much. BackwardInput removes 1 -
/// `weight_share` of it, BackwardWeight removes `weight_share`. Other steps change nothing.
double live_change(const Placement& placement, Action action, double weight_share);

/// Makes a timeline from events, which must be ordered by rank and, within a rank, in the order of its schedule.
Timeline make_timeline(std::vector<Event> events, const Placement& placement, double weight_share = 0.5);

/// A function that returns the duration of a step on a rank.
using OpCost = std::function<double(int rank, const PipelineOp&)>;

/// Runs the schedule on a simulated clock. A rank runs its compute steps in order, each as soon as its input is
/// available. Messages are sent when they are made and delay only the step that needs them. `cost` returns the
/// durations of compute steps, Reduce and Update, which occupy the rank. `transfer` returns the duration of a message,
/// for its send. A schedule that has no transfers yet (Family::order) is timed as if it had them.
/// Errors ("pipeline"): a rank would wait forever.
Timeline simulate(const Schedule& schedule, const OpCost& cost, const OpCost& transfer, double weight_share = 0.5);

/// Simulates with cost_of(costs, ...) for steps and `costs.transfer` for each message.
Timeline simulate(const Schedule& schedule, const Costs& costs, double weight_share = 0.5);

}  // namespace colossal::schedule
