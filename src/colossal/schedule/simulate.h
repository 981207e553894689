// When what happens: the times of a schedule's steps, computed here or measured in a run, and what follows from them.
#pragma once
#include <functional>
#include <vector>

#include "colossal/schedule/make.h"

namespace colossal::schedule {

struct Event {
  int rank;
  Step step;
  double begin, end;  ///< of a send or receive: the time the message is on its way
};

/// A schedule with times. Made by simulate(), or by make_timeline() from what was measured.
struct Timeline {
  std::vector<Event> events;  ///< of rank 0 in its order, then of rank 1, ...
  int ranks = 0, chunks = 1;
  double makespan = 0;            ///< from the first begin to the last end of a compute step
  std::vector<double> busy;       ///< of each rank: in compute steps
  std::vector<double> span;       ///< of each rank: from its first compute step's begin to the end of its last
  std::vector<double> peak_live;  ///< of each rank: most activations alive at once (live_change)
  int transfers = 0;              ///< messages sent

  /// Idle time relative to ideal compute: (longest span - most busy time) / most busy time. Ranks may begin and end at
  /// different times: the next step fills these triangles, so only a rank's own span counts (as the zero-bubble papers
  /// count).
  double bubble() const;
};

/// What a step adds to the live activations of its rank, one being a micro-batch on all chunks of a pipe that the rank
/// holds: pipes / chunks at a Forward, as much less at a Backward, of which BackwardInput frees 1 - `weight_share` and
/// BackwardWeight the rest; others nothing.
double live_change(const Placement& placement, Action action, double weight_share);

/// Sums up events, which must be ordered by rank and, within a rank, in the order of its schedule.
Timeline make_timeline(std::vector<Event> events, const Placement& placement, double weight_share = 0.5);

/// A duration of a step of a rank.
using StepCost = std::function<double(int rank, const Step&)>;

/// Runs the schedule on a clock. A rank does its compute steps in order, each as soon as its input is there; messages
/// leave when they are made and delay only the step that needs them. `cost` gives the durations of compute steps,
/// Reduce and Update, which occupy the rank; `transfer` that of a message, for its send. A schedule without transfers
/// yet (Family::order) is timed as if it had them.
/// Errors ("pipeline"): a rank would wait for ever.
Timeline simulate(const Schedule& schedule, const StepCost& cost, const StepCost& transfer, double weight_share = 0.5);

/// Simulates with cost_of(costs, ...) for steps and `costs.transfer` for each message.
Timeline simulate(const Schedule& schedule, const Costs& costs, double weight_share = 0.5);

}  // namespace colossal::schedule
