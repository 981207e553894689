// Time that a long run loses to failures, checkpoints and late ranks.
//
//   const plan::Failures failures{.device_hours = 50700, .restart = 300};
//   const double interval = failures.best_interval(16384, 30);    // seconds of training between two checkpoints
//   failures.goodput(16384, 30, interval);                        // share of the time that trains: 0.90
//   describe_failures(plan::lost_time(failures, 16384, 30, 6.5, 0.1));    // the same in words, with late ranks
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::plan {

/// How often devices fail, and what a failure costs. Source: Young's first-order model, in which failures are
/// independent and a failure loses half an interval on average.
struct Failures {
  /// mean hours between two failures of one device. Default: Llama 3 405B had 419 unexpected interruptions in 54 days
  /// on 16,384 GPUs, and 54 * 24 * 16384 / 419 = 50,676
  double device_hours = 50700;
  double restart = 300;  ///< seconds from a failure until the run trains again

  void fields(Fields& f) {
    f.number("device_hours", device_hours, "hours", "mean time between two failures of one device", 1e-3);
    f.number("restart", restart, "seconds", "time from a failure until the run trains again", 0);
  }

  /// Returns the mean seconds between two failures of `devices` devices. Errors ("cluster"): `devices` is below 1.
  double seconds_between(int64_t devices) const;
  /// Returns the seconds of training between two checkpoints that lose the least time: sqrt(2 c T), where c =
  /// `checkpoint` is the seconds of one checkpoint and T is seconds_between(). Errors ("cluster"): `checkpoint` is not
  /// positive.
  double best_interval(int64_t devices, double checkpoint) const;
  /// Returns the share of the time in which the run makes progress: 1 - c/i - i/(2 T) - restart/T, at least 0.
  /// `interval` is i, in seconds. Errors ("cluster"): `interval` is not positive.
  double goodput(int64_t devices, double checkpoint, double interval) const;
};

/// Returns the mean of the largest of `ranks` step times with the mean `mean` and the standard deviation `deviation`,
/// in seconds: mean + deviation sqrt(2 ln ranks). The slowest rank determines a step. Errors ("cluster"): `ranks` is
/// below 1.
double slowest_of(int64_t ranks, double mean, double deviation);

/// Time that a long run on `devices` devices loses to failures and late ranks, in seconds.
struct LostTime {
  int64_t devices = 0;
  double between_failures = 0;      ///< mean time between two failures of any device
  double checkpoint = 0;            ///< time of one checkpoint
  double checkpoint_interval = 0;   ///< training between two checkpoints that loses the least time; 0 = checkpoint is 0
  double goodput = 1;               ///< share of the time that makes progress with this interval
  double step = 0;                  ///< predicted step, in which all ranks take the same time
  double step_with_late_ranks = 0;  ///< mean step of the slowest rank
};

/// Returns the losses of a run whose checkpoint takes `checkpoint` seconds (0 = costs nothing, so that only restarts
/// lose time) and whose ranks take `step` seconds for a step, with the standard deviation `deviation`.
/// Errors ("cluster"): `devices` is below 1; a time that is negative.
LostTime lost_time(const Failures& failures, int64_t devices, double checkpoint, double step, double deviation = 0);

/// Returns sentences for people: the interval to set, the goodput, and the step with late ranks if it differs.
std::string describe_failures(const LostTime& lost);

}  // namespace colossal::plan
