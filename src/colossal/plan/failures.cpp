#include "colossal/plan/failures.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"

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

}  // namespace colossal::plan
