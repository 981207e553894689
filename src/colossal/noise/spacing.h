// Which noise levels a sampler visits.
//
//   const std::vector<double> times = noise::spaced_times({.spacing = noise::Spacing::Leading,
//                                                          .levels = 1000, .steps = 50, .offset = 1});
//
// Or levels of which the deviations, not the times, are spaced:
//
//   const noise::SigmaTable table(levels);
//   for (const double sigma : noise::karras_sigmas(10, table.sigma_at(999), table.sigma_at(0)))
//     std::printf("%g: %g\n", table.time_of(sigma), sigma);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/noise/noise_levels.h"

namespace colossal::noise {

/// Ways to choose n of T times, from the most noise to the least (arXiv:2305.08891, table 2).
enum class Spacing {
  Leading,   ///< i (T / n, rounded down) + offset for i < n: begins below the last time
  Trailing,  ///< round(T - i T / n) - 1: begins at the last time
  Linspace,  ///< from T - 1 to 0 at equal distances
};

std::vector<std::string> spacing_names();

/// Returns the spacing of that name: "leading", "trailing" or "linspace". Errors ("draw"): another name (the message
/// has the nearest one).
Spacing spacing_named(const std::string& name);

/// How diffusers' families of samplers read a spacing.
enum class Points {
  Whole,       ///< whole times
  Fractional,  ///< Linspace is not rounded
  Inner,       ///< Leading and Linspace choose n + 1 whole times and leave out the last
};

struct TimesRequest {
  Spacing spacing = Spacing::Leading;
  int64_t levels = 1000;  ///< T, the number of noise levels
  int64_t steps = 50;     ///< n, the number of times to choose
  int64_t offset = 0;     ///< steps_offset, which Leading adds to each time
  Points points = Points::Whole;
};

/// Returns n times, falling. They are diffusers' own to the last bit, half numbers rounded to even ones included.
/// Errors ("draw"), with the values that are possible: fewer than 1 step; more steps than noise levels; an offset that
/// is negative or leads out of the table.
std::vector<double> spaced_times(const TimesRequest& request);

/// The deviations sigma = noise / signal of a table, which rise with the time, also between its times. A level without
/// signal has abar = 2^-24 here, as in diffusers.
class SigmaTable {
 public:
  explicit SigmaTable(const NoiseLevels& levels);

  /// Returns sigma at a time, linear between two times of the table and constant beyond its ends.
  double sigma_at(double time) const;

  /// Returns the time at which the logarithm of sigma, linear between two times, has this value; the first or last time
  /// for a sigma beyond the ends.
  double time_of(double sigma) const;

 private:
  std::vector<double> sigmas_, logs_;
};

/// Returns `steps` deviations from `most` to `least`, whose 7th roots have equal distances (arXiv:2206.00364).
std::vector<double> karras_sigmas(int64_t steps, double most, double least);

}  // namespace colossal::noise
