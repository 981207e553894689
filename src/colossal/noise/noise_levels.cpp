#include "colossal/noise/noise_levels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "colossal/base/error.h"
#include "colossal/noise/names.h"

namespace colossal::noise {
namespace {

/// Points from `first` to `last` at equal distances.
std::vector<double> line(double first, double last, int64_t count) {
  std::vector<double> points(static_cast<size_t>(count), first);
  for (int64_t i = 1; i < count; ++i)
    points[static_cast<size_t>(i)] = first + static_cast<double>(i) * (last - first) / static_cast<double>(count - 1);
  return points;
}

std::vector<double> scaled_linear_betas(const NoiseOptions& o) {
  std::vector<double> betas = line(std::sqrt(o.beta_start), std::sqrt(o.beta_end), o.steps);
  for (double& beta : betas) beta *= beta;
  return betas;
}

std::vector<double> linear_betas(const NoiseOptions& o) { return line(o.beta_start, o.beta_end, o.steps); }

std::vector<double> cosine_betas(const NoiseOptions& o) {
  const auto share = [&](int64_t t) {
    const double at = static_cast<double>(t) / static_cast<double>(o.steps);
    return std::pow(std::cos((at + 0.008) / 1.008 * std::numbers::pi / 2), 2);
  };
  std::vector<double> betas;
  for (int64_t t = 0; t < o.steps; ++t) betas.push_back(std::min(1 - share(t + 1) / share(t), 0.999));
  return betas;
}

struct ScheduleRow {
  const char* name;
  double beta_start, beta_end;  // 0: the schedule has no such keys
  std::vector<double> (*betas)(const NoiseOptions&);
};

const std::vector<ScheduleRow>& schedule_rows() {
  static const std::vector<ScheduleRow> rows{{"scaled-linear", 0.00085, 0.012, scaled_linear_betas},
                                             {"linear", 0.0001, 0.02, linear_betas},
                                             {"cosine", 0, 0, cosine_betas}};
  return rows;
}

NoiseOptions complete(NoiseOptions options) {
  const ScheduleRow& row = named(schedule_rows(), options.schedule, "diffusion", "schedule");
  const bool has_betas = row.beta_end > 0;
  require(has_betas || (options.beta_start == 0 && options.beta_end == 0), "diffusion", "schedule = \"", row.name,
          "\" has no beta_start and beta_end: got ", options.beta_start, " and ", options.beta_end, "; remove them");
  if (options.beta_start == 0) options.beta_start = row.beta_start;
  if (options.beta_end == 0) options.beta_end = row.beta_end;
  require(!has_betas || (options.beta_start > 0 && options.beta_start <= options.beta_end && options.beta_end < 1),
          "diffusion", "beta_start and beta_end must be in (0, 1) and must not fall: got ", options.beta_start, " and ",
          options.beta_end);
  const int64_t fewest = options.zero_terminal_snr ? 2 : 1, most = 1'000'000;
  require(options.steps >= fewest && options.steps <= most, "diffusion", "steps must be between ", fewest, " and ",
          most, ": got ", options.steps);
  return options;
}

void remove_terminal_signal(std::vector<double>& abar) {
  const double first = std::sqrt(abar.front()), last = std::sqrt(abar.back());
  for (double& share : abar) share = std::pow((std::sqrt(share) - last) * (first / (first - last)), 2);
}

}  // namespace

std::vector<std::string> schedule_names() { return names_of(schedule_rows()); }

NoiseLevels::NoiseLevels(const NoiseOptions& options) : options_(complete(options)) {
  double product = 1;
  for (const double beta : named(schedule_rows(), options_.schedule, "diffusion", "schedule").betas(options_))
    abar_.push_back(product *= 1 - beta);
  if (options_.zero_terminal_snr) remove_terminal_signal(abar_);
}

double NoiseLevels::abar(int64_t t) const {
  require(t >= 0 && t < steps(), "diffusion", "a time must be between 0 and ", steps() - 1, ": got ", t);
  return abar_[static_cast<size_t>(t)];
}

double NoiseLevels::signal(int64_t t) const { return std::sqrt(abar(t)); }
double NoiseLevels::noise(int64_t t) const { return std::sqrt(1 - abar(t)); }
double NoiseLevels::snr(int64_t t) const { return abar(t) / (1 - abar(t)); }
double NoiseLevels::sigma(int64_t t) const { return noise(t) / signal(t); }

}  // namespace colossal::noise
