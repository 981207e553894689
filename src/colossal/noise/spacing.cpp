#include "colossal/noise/spacing.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/noise/names.h"

namespace colossal::noise {
namespace {

struct SpacingRow {
  const char* name;
  Spacing spacing;
};

const std::vector<SpacingRow>& spacing_rows() {
  static const std::vector<SpacingRow> rows{
      {"leading", Spacing::Leading}, {"trailing", Spacing::Trailing}, {"linspace", Spacing::Linspace}};
  return rows;
}

/// Rounds half numbers to even ones, in the default rounding mode.
double rounded(double x) { return std::nearbyint(x); }

std::vector<double> leading_times(const TimesRequest& r) {
  const int64_t inner = r.points == Points::Inner ? 1 : 0, stride = r.levels / (r.steps + inner);
  const int64_t first = (r.steps - 1 + inner) * stride + r.offset;
  require(r.offset >= 0 && first < r.levels, "draw", "steps_offset must keep the times between 0 and ", r.levels - 1,
          ": got ", r.offset, ", with which the first time is ", first, "; set steps_offset = 0, or take fewer steps");
  std::vector<double> times;
  for (int64_t i = 0; i < r.steps; ++i) times.push_back(static_cast<double>(first - i * stride));
  return times;
}

std::vector<double> trailing_times(const TimesRequest& r) {
  const double levels = static_cast<double>(r.levels);
  // The distance that NumPy's arange makes of T / n: whether a half number is rounded up depends on its last bit.
  const double distance = (levels - levels / static_cast<double>(r.steps)) - levels;
  std::vector<double> times;
  for (int64_t i = 0; i < r.steps; ++i) times.push_back(rounded(levels + static_cast<double>(i) * distance) - 1);
  return times;
}

std::vector<double> linspace_times(const TimesRequest& r) {
  const int64_t count = r.points == Points::Inner ? r.steps + 1 : r.steps;
  const double last = static_cast<double>(r.levels - 1);
  std::vector<double> times;
  for (int64_t i = count - 1; i >= count - r.steps; --i) {
    const double time = count == 1       ? 0
                        : i == count - 1 ? last
                                         : static_cast<double>(i) * (last / static_cast<double>(count - 1));
    times.push_back(r.points == Points::Fractional ? time : rounded(time));
  }
  return times;
}

}  // namespace

std::vector<std::string> spacing_names() { return names_of(spacing_rows()); }

Spacing spacing_named(const std::string& name) { return named(spacing_rows(), name, "draw", "spacing").spacing; }

std::vector<double> spaced_times(const TimesRequest& request) {
  const bool leaves_one = request.points == Points::Inner && request.spacing != Spacing::Trailing;
  const int64_t most = leaves_one ? request.levels - 1 : request.levels;
  require(request.steps >= 1 && request.steps <= most, "draw", "steps must be between 1 and ", most, " with ",
          request.levels, " noise levels: got ", request.steps);
  switch (request.spacing) {
    case Spacing::Leading:
      return leading_times(request);
    case Spacing::Trailing:
      return trailing_times(request);
    case Spacing::Linspace:
      break;
  }
  return linspace_times(request);
}

SigmaTable::SigmaTable(const NoiseLevels& levels) {
  for (int64_t t = 0; t < levels.steps(); ++t) {
    const bool is_terminal = t + 1 == levels.steps() && levels.options().zero_terminal_snr;
    const double abar = is_terminal ? std::ldexp(1, -24) : levels.abar(t);
    sigmas_.push_back(std::sqrt((1 - abar) / abar));
    logs_.push_back(std::log(sigmas_.back()));
  }
}

double SigmaTable::sigma_at(double time) const {
  const double at = std::clamp(time, 0.0, static_cast<double>(sigmas_.size() - 1));
  const size_t low = static_cast<size_t>(at), high = std::min(low + 1, sigmas_.size() - 1);
  return sigmas_[low] + (at - static_cast<double>(low)) * (sigmas_[high] - sigmas_[low]);
}

double SigmaTable::time_of(double sigma) const {
  if (logs_.size() == 1) return 0;
  const double log = std::log(std::max(sigma, 1e-10));
  // The last time at or below it: the deviation of a terminal level without signal may be below that of its neighbour.
  const auto below = std::find_if(logs_.rbegin(), logs_.rend(), [&](double other) { return other <= log; });
  const int64_t low = std::clamp<int64_t>(logs_.rend() - below - 1, 0, static_cast<int64_t>(logs_.size()) - 2);
  const double from = logs_[static_cast<size_t>(low)], to = logs_[static_cast<size_t>(low) + 1];
  return static_cast<double>(low) + std::clamp((log - from) / (to - from), 0.0, 1.0);
}

std::vector<double> karras_sigmas(int64_t steps, double most, double least) {
  constexpr double kRho = 7;
  const double first = std::pow(most, 1 / kRho), last = std::pow(least, 1 / kRho);
  std::vector<double> sigmas;
  for (int64_t i = 0; i < steps; ++i) {
    const double part = steps == 1 ? 0 : static_cast<double>(i) / static_cast<double>(steps - 1);
    sigmas.push_back(std::pow(first + part * (last - first), kRho));
  }
  return sigmas;
}

}  // namespace colossal::noise
