// Classifier-free guidance: an estimate away from what the model says without a prompt.
//
//   const noise::GuidanceFactors factors = noise::guidance_factors(7.5);
//   const double guided = factors.conditional * with_prompt + factors.unconditional * without;
#pragma once

namespace colossal::noise {

struct GuidanceFactors {
  double conditional, unconditional;
};

/// Returns the factors of u + w (c - u), with the outputs c for the prompt and u for none (arXiv:2207.12598).
GuidanceFactors guidance_factors(double guidance);

/// Returns the factor of a guided output that gives back part of the deviation that guidance changed:
/// rescale deviation(c) / deviation(guided) + 1 - rescale (arXiv:2305.08891). The deviations are those of all numbers
/// of a row, with n - 1 degrees of freedom.
double rescale_factor(double conditional_deviation, double guided_deviation, double rescale);

}  // namespace colossal::noise
