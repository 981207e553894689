// What a diffusion model sees and what it learns to predict, as factors of the picture x0, of the noise e, of the
// noised picture x and of the model's output.
//
//   const noise::Level level = noise::table_level(levels, 500);
//   const noise::Mix wanted = noise::training_target(noise::Target::V, level.mix);
//   const double target = wanted.signal * pixel + wanted.noise * normal;
//
// Back from an output of the model:
//
//   const noise::Reading reading = noise::read_sample(noise::Target::V, level.mix);
//   const double guess = reading.sample * noised + reading.output * output;
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/noise/noise_levels.h"

namespace colossal::noise {

/// What the output of a model estimates. Its name in a config is "epsilon", "v", "sample", "flow" or "edm".
enum class Target {
  Epsilon,  ///< the noise e                                                        arXiv:2006.11239
  V,        ///< signal e - noise x0, for a mixture scaled to unit variance         arXiv:2202.00512
  Sample,   ///< the picture x0
  Flow,     ///< e - x0, the direction of the line from picture to noise            arXiv:2209.03003
  Edm,      ///< F of x0 = c_skip x + c_out F(c_in x, c_noise)                      arXiv:2206.00364
};

std::vector<std::string> target_names();
std::string name_of(Target target);

/// Returns the target of that name. Errors ("diffusion"): an unknown name (the message has the nearest one).
Target target_named(const std::string& name);

/// Checks that a model can learn the target on these levels. Errors ("diffusion"): Epsilon with zero_terminal_snr,
/// where the last noised picture is the noise itself, and x0 would be divided by 0.
void check_target(Target target, const NoiseOptions& options);

/// A noise level, as a model hears of it.
struct Level {
  double time = 0;  ///< number that the model's time embedding reads
  Mix mix;          ///< the noised picture
};

/// Returns level `t` of a table. Errors ("diffusion"): no such level.
Level table_level(const NoiseLevels& levels, int64_t t);

/// Returns the level of a flow at t in [0, 1]: (1 - t) x0 + t e. Its time is `steps` t, as models expect it that were
/// made for tables of so many levels.
Level flow_level(double t, int64_t steps = 1000);

/// Returns the level of EDM with noise of deviation sigma: x0 + sigma e. Its time is c_noise.
Level edm_level(double sigma);

/// The factors of EDM for pictures of deviation .5 (arXiv:2206.00364, table 1).
struct EdmFactors {
  double skip, out, in, noise;  ///< c_skip, c_out, c_in and c_noise
  double weight;                ///< weight of the squared error of x0
};
EdmFactors edm_factors(double sigma);

/// Returns the deviation of EDM's noise in training, whose logarithm is normal: mean -1.2, deviation 1.2. `normal` is a
/// standard normal number.
double edm_training_sigma(double normal);

/// Returns the factor by which the noised picture is multiplied before the model reads it: one that makes its variance
/// 1, c_in for Edm, 1 for Flow.
double input_scale(Target target, const Mix& mix);

/// Returns what the model shall output for a noised picture, as factors of x0 and e.
Mix training_target(Target target, const Mix& mix);

/// The estimate sample x + output o, where x is the noised picture and o the model's output.
struct Reading {
  double sample = 0, output = 0;
};

/// Returns how x0 follows from the noised picture and the output. It is not finite for Epsilon without signal.
Reading read_sample(Target target, const Mix& mix);

/// Returns how e follows from them. It is not finite for Sample without noise.
Reading read_noise(Target target, const Mix& mix);

}  // namespace colossal::noise
