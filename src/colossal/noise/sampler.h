// Samplers: how noise becomes a picture in a few evaluations of a model, as numbers.
//
// Each sampler is linear in few tensors: the sample, a kept earlier sample, the model's output, its last estimates and
// new noise. A plan has their factors, so one loop runs every sampler:
//
//   const noise::SamplerPlan plan = noise::plan_sampler(levels, {.sampler = "dpm++2m", .steps = 25});
//   double sample = plan.start_scale * normal(), base = sample;
//   std::deque<double> estimates;  // the newest first
//   for (const noise::SamplerStep& step : plan.steps) {
//     const double output = model(step.input_scale * sample, step.time);
//     estimates.push_front(step.estimate.sample * sample + step.estimate.output * output);
//     if (step.clip > 0) estimates[0] = std::clamp(estimates[0], -step.clip, step.clip);
//     const auto sum = [&](const noise::Combination& c, double fresh) {
//       double value = c.sample * sample + c.base * base + c.output * output + c.noise * fresh;
//       for (size_t i = 0; i < estimates.size(); ++i) value += c.estimates[i] * estimates[i];
//       return value;
//     };
//     const double next = sum(step.next, step.next.noise > 0 ? normal() : 0);
//     if (step.next_base) base = sum(*step.next_base, 0);
//     sample = next;
//     if (!step.keeps_estimate) estimates.pop_front();
//     if (estimates.size() > plan.history) estimates.pop_back();
//   }
//
// With a learned variance (SamplerStep::learned) the model has a second output, and its deviation is drawn per element.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/noise/spacing.h"
#include "colossal/noise/target.h"

namespace colossal::noise {

/// The variance of the noise that ddpm adds.
enum class Variance {
  Small,    ///< that of the posterior for a known x0, beta~
  Large,    ///< beta
  Learned,  ///< between both, from the model's second output (arXiv:2102.09672)
};

struct SamplerOptions {
  std::string sampler = "ddim";    ///< one of sampler_names()
  std::string spacing;             ///< one of spacing_names(); "" = default_spacing(sampler)
  int64_t steps = 25;              ///< noise levels to visit; heun and pndm evaluate the model more often
  int64_t steps_offset = 0;        ///< added to the times of leading spacing
  bool karras = false;             ///< space the deviations as karras_sigmas() does
  double eta = 0;                  ///< ddim: share of the noise of ddpm that each step adds
  bool set_alpha_to_one = true;    ///< ddim and pndm: end at the clean picture; false: at noise level 0
  bool ends_at_sigma_min = false;  ///< euler, dpm++2m, dpm++2m-sde and unipc: end at noise level 0, not at the picture
  double clip = 0;                 ///< ddpm, ddim and heun: clip estimates of x0 to this range around 0; 0 = off
  Variance variance = Variance::Small;  ///< ddpm only
  double shift = 1;                     ///< flow only: factor of shifted(), applied as diffusers does
  double strength = 1;                  ///< share of the steps to run, from the end; below 1 for image to image
  Target target = Target::Epsilon;      ///< what the model predicts
};

/// Factors of a sum of tensors.
struct Combination {
  double sample = 0;                  ///< of the sample that the model saw, without input_scale
  double base = 0;                    ///< of the kept earlier sample
  double output = 0;                  ///< of the model's output
  double noise = 0;                   ///< of new standard normal noise
  std::array<double, 4> estimates{};  ///< of this step's estimate, of the one before it, ...
};

/// The logarithms between which a model with Variance::Learned chooses: its second output v adds
/// exp((f large + (1 - f) small) / 2) noise to the next sample, where f = (v + 1) / 2.
struct LogVariances {
  double small, large;
};

/// One evaluation of the model, and what follows from it.
struct SamplerStep {
  double time = 0;             ///< what the model's time embedding reads
  double input_scale = 1;      ///< the model sees input_scale x sample
  Mix level;                   ///< the sample before the step; also how a picture is noised to begin or to paint here
  Reading estimate;            ///< the estimate, mostly x0; pndm keeps the output itself
  double clip = 0;             ///< range to which the estimate is clipped; 0 = off
  bool keeps_estimate = true;  ///< later steps count this estimate as one before theirs
  Combination next;            ///< the next sample
  std::optional<Combination> next_base;  ///< the next kept sample, from the tensors before the step; none: it stays
  std::optional<LogVariances> learned;   ///< ddpm with a learned variance; then next.noise is 0
};

struct SamplerPlan {
  double start_scale = 1;          ///< factor of standard normal noise, with which drawing from noise alone begins
  std::vector<SamplerStep> steps;  ///< drawing from a picture begins at steps[0].level
  size_t history = 0;              ///< number of earlier estimates that steps read, at most 3
};

/// Returns the names of the samplers:
///
///   ddpm             ancestral, along the posterior             arXiv:2006.11239
///   ddim             deterministic, with noise for eta > 0      arXiv:2010.02502
///   pndm             ddim on a fourth-order sum of outputs      arXiv:2202.09778, without Runge-Kutta steps
///   euler            first order in sigma                       arXiv:2206.00364
///   euler-ancestral  euler to a lower level, then noise
///   heun             second order, two evaluations a step       arXiv:2206.00364
///   dpm++2m          second order in log SNR                    arXiv:2211.01095
///   dpm++2m-sde      dpm++2m of the stochastic equation
///   unipc            dpm++2m with a corrector                   arXiv:2302.04867
///   flow             euler along the line of a flow             arXiv:2403.03206
std::vector<std::string> sampler_names();

/// Returns the spacing that diffusers' scheduler of this kind has by default: "leading" for ddpm, ddim and pndm,
/// "linspace" for the others. Errors ("draw"): an unknown sampler.
std::string default_spacing(const std::string& sampler);

/// Returns true if the sampler may space deviations with SamplerOptions::karras. Errors ("draw"): an unknown sampler.
bool has_sigmas(const std::string& sampler);

/// Makes the plan of a sampler. Its steps are those of diffusers 0.42 to the rounding of fp64.
///
/// A model with target Edm visits karras_sigmas() from 80 to .002. One with target Flow visits times at equal distances
/// from 1 to 1 / levels.steps(), whose ends are shifted before and which all are shifted after, as in diffusers; with
/// trailing spacing the times 1 - i / steps, shifted once. For these, only the number of `levels` is read.
///
/// Errors ("draw"): an unknown sampler or spacing (the message has the nearest name); karras with a sampler that has no
/// sigmas; eta for another sampler than ddim; flow for another target than Flow, and the reverse; a shift or a spacing
/// that has no effect; values out of range; those of spaced_times() and check_target().
SamplerPlan plan_sampler(const NoiseLevels& levels, const SamplerOptions& options);

}  // namespace colossal::noise
