#include "colossal/plan/failures.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/base/progress.h"

namespace colossal::plan {

double Failures::seconds_between(int64_t devices) const {
  require(devices >= 1, "cluster", "devices must be at least 1: got ", devices);
  return device_hours * 3600 / static_cast<double>(devices);
}

double Failures::best_interval(int64_t devices, double checkpoint) const {
  require(checkpoint > 0, "cluster", "seconds of a checkpoint must be above 0: got ", checkpoint);
  return std::sqrt(2 * checkpoint * seconds_between(devices));
}

double Failures::goodput(int64_t devices, double checkpoint, double interval) const {
  require(interval > 0, "cluster", "seconds between checkpoints must be above 0: got ", interval);
  const double between = seconds_between(devices);
  return std::max(0.0, 1 - checkpoint / interval - interval / (2 * between) - restart / between);
}

double slowest_of(int64_t ranks, double mean, double deviation) {
  require(ranks >= 1, "cluster", "ranks must be at least 1: got ", ranks);
  return mean + deviation * std::sqrt(2 * std::log(static_cast<double>(ranks)));
}

LostTime lost_time(const Failures& failures, int64_t devices, double checkpoint, double step, double deviation) {
  for (const double seconds : {checkpoint, step, deviation})
    require(seconds >= 0, "cluster", "times of checkpoints and steps must be 0 or more: got ", seconds);
  LostTime lost{.devices = devices,
                .between_failures = failures.seconds_between(devices),
                .checkpoint = checkpoint,
                .step = step,
                .step_with_late_ranks = slowest_of(devices, step, deviation)};
  if (checkpoint > 0) {
    lost.checkpoint_interval = failures.best_interval(devices, checkpoint);
    lost.goodput = failures.goodput(devices, checkpoint, lost.checkpoint_interval);
  } else {
    lost.goodput = std::max(0.0, 1 - failures.restart / lost.between_failures);
  }
  return lost;
}

std::string describe_failures(const LostTime& lost) {
  std::string text = concat("One of ", lost.devices, lost.devices == 1 ? " device" : " devices", " fails every ",
                            readable_duration(lost.between_failures), " on average.\n");
  if (lost.checkpoint_interval > 0) {
    text += concat("A checkpoint takes ", readable_duration(lost.checkpoint), "; one every ",
                   readable_duration(lost.checkpoint_interval), " of training loses the least time");
    if (lost.step > 0)
      text += concat(" (", std::max<int64_t>(1, std::llround(lost.checkpoint_interval / lost.step)), " steps)");
    text += ".\n";
  }
  text += concat("Goodput: ", fixed_text(100 * lost.goodput, 1), " % of the time makes progress.\n");
  if (lost.step_with_late_ranks > lost.step && lost.step > 0)
    text += concat("Late ranks make a step ", fixed_text(100 * (lost.step_with_late_ranks / lost.step - 1), 1),
                   " % longer.\n");
  return text;
}

}  // namespace colossal::plan
