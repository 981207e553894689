// Times of flow models: how training draws them, and how they are shifted towards the noise for large pictures.
//
//   const noise::FlowOptions options{.times = "logit-normal", .shift = 3};
//   const double t = noise::flow_time(options, uniform, normal);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/noise/target.h"

namespace colossal::noise {

/// The keys of [diffusion] that only target = "flow" has.
struct FlowOptions {
  std::string times = "uniform";  ///< distribution of training times, one of flow_times_names()
  double shift = 1;               ///< factor of shifted(); 1 = none
};

/// Returns the names of the distributions of training times (arXiv:2403.03206): uniform, logit-normal and mode.
std::vector<std::string> flow_times_names();

/// Checks the options. Errors ("diffusion"): an unknown `times` (the message has the nearest name), a shift that is not
/// positive, options that are not the defaults for another target than Flow.
void check_flow_options(const FlowOptions& options, Target target);

/// Returns a training time in [0, 1], shifted. `uniform` is in [0, 1), and `normal` is standard normal. Each
/// distribution uses one of them.
double flow_time(const FlowOptions& options, double uniform, double normal);

double logit_normal_time(double normal, double mean = 0,
                         double deviation = 1);  ///< returns sigmoid(mean + deviation n)

/// Returns 1 - u - scale (cos^2(pi u / 2) - 1 + u), which favours the middle for scale > 0.
double mode_time(double uniform, double scale = 1.29);

/// Returns shift t / (1 + (shift - 1) t): more noise for a shift above 1.
double shifted(double t, double shift);

/// The size of a picture or clip that a model draws, by which its family shifts times.
struct DrawnSize {
  double pixels = 0;   ///< of a frame
  int64_t frames = 1;  ///< of the latent, or of a clip that has none
  int64_t tokens = 0;  ///< of a frame: its patches
};

/// Returns the shift of times for that size by the rule of a family (diffusion.shift = "auto"). Rules:
///   ""             1
///   "sd3"          3                                                                      Stable Diffusion 3
///   "flux-schnell" 1                                                                      Flux schnell
///   "flux"         exp of .5 at 256 tokens to 1.15 at 4096, on a line                     Flux dev
///   "open-sora-1"  sqrt(pixels / 512^2) sqrt(frames)                                      Open-Sora 1.2
///   "open-sora-2"  (1 at 256 tokens to 3 at 4096, on a line) sqrt(frames)                 Open-Sora 2
/// Open-Sora 1.2 takes the latent frames of a clip as 5 for each 17 of its frames, as its autoencoder makes them.
/// Errors ("diffusion"): an unknown rule.
double automatic_shift(const std::string& rule, const DrawnSize& size);

/// Returns the spacing of times with which models of that rule draw: "trailing" for FLUX and Open-Sora, "" = that of
/// the sampler flow. Errors ("diffusion"): an unknown rule.
std::string automatic_spacing(const std::string& rule);

}  // namespace colossal::noise
