// The noise levels of a diffusion model: how much of a picture and how much noise each of its times mixes.
//
//   const noise::NoiseLevels levels({.schedule = "scaled-linear", .steps = 1000});
//   const double signal = levels.signal(500), amount = levels.noise(500);
//   const double noised = signal * pixel + amount * normal;
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::noise {

/// The keys of [diffusion] that define the noise levels.
struct NoiseOptions {
  std::string schedule = "scaled-linear";  ///< one of schedule_names()
  double beta_start = 0;                   ///< variance that the first time adds; 0 = the schedule's own
  double beta_end = 0;                     ///< variance that the last time adds; 0 = the schedule's own
  int64_t steps = 1000;                    ///< number of noise levels
  bool zero_terminal_snr = false;          ///< scale the table so that the last level is pure noise
};

/// Returns the names of the schedules:
///
///   scaled-linear  sqrt(beta) rises linearly from sqrt(.00085) to sqrt(.012)   Stable Diffusion, arXiv:2112.10752
///   linear         beta rises linearly from .0001 to .02                       DDPM, arXiv:2006.11239
///   cosine         cos^2((t + .008) / 1.008 pi / 2), beta at most .999         arXiv:2102.09672
std::vector<std::string> schedule_names();

/// The mixture signal x0 + noise e of a picture x0 and standard normal noise e.
struct Mix {
  double signal = 1, noise = 0;
};

/// The table of a diffusion with discrete times 0 (nearly clean) to steps - 1 (nearly noise). With the variance beta_t
/// that time t adds, abar_t is the product of 1 - beta_i for i <= t, and the noised picture of time t is
/// sqrt(abar_t) x0 + sqrt(1 - abar_t) e.
class NoiseLevels {
 public:
  /// With zero_terminal_snr the square roots of abar are shifted and scaled so that the last is 0 and the first stays
  /// (arXiv:2305.08891).
  /// Errors ("diffusion"): an unknown schedule (the message has the nearest name); a beta outside (0, 1) or betas in
  /// the wrong order; betas for the cosine schedule, which has none; fewer than 1 step, or 2 with zero_terminal_snr.
  explicit NoiseLevels(const NoiseOptions& options);

  int64_t steps() const { return static_cast<int64_t>(abar_.size()); }
  const NoiseOptions& options() const { return options_; }

  /// The functions of a time t require 0 <= t < steps(). Errors ("diffusion"): another time.
  double abar(int64_t t) const;    ///< returns the share of the signal in the variance
  double signal(int64_t t) const;  ///< returns sqrt(abar), the factor of the picture
  double noise(int64_t t) const;   ///< returns sqrt(1 - abar), the factor of the noise
  Mix mix(int64_t t) const { return {signal(t), noise(t)}; }
  double snr(int64_t t) const;    ///< returns the signal-to-noise ratio abar / (1 - abar)
  double sigma(int64_t t) const;  ///< returns noise / signal; infinity at a terminal level without signal

 private:
  NoiseOptions options_;
  std::vector<double> abar_;
};

}  // namespace colossal::noise
