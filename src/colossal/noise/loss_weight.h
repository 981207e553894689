// Weights of the squared error of a diffusion model's output.
//
//   const double weight = noise::min_snr_weight(noise::Target::Epsilon, levels.snr(100), 5);
#pragma once
#include "colossal/noise/target.h"

namespace colossal::noise {

/// Returns the weight that makes the loss that of x0 with weight min(SNR, gamma) (arXiv:2303.09556): for Epsilon
/// min(SNR, gamma) / SNR, for V min(SNR, gamma) / (SNR + 1), for Sample min(SNR, gamma). Returns 1 if gamma is 0. `snr`
/// is that of the table in use, so with a zero terminal SNR that of the scaled table.
///
/// For Edm and Flow the weight is 1: the training target of Edm already has the scale that makes the paper's weight
/// (EdmFactors::weight) 1 for the output.
/// Errors ("diffusion"): a negative gamma; one above 0 for Flow and Edm, for which it is not defined.
double min_snr_weight(Target target, double snr, double gamma);

}  // namespace colossal::noise
