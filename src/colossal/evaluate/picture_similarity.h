// How similar two pictures of 8 bits are.
//
//   const double decibels = evaluate::peak_signal_to_noise(picture, reconstruction);
//   const double likeness = evaluate::structural_similarity(picture, reconstruction);      // 1 = equal
#pragma once
#include <cstdint>

#include "colossal/data/pictures/picture.h"

namespace colossal::evaluate {

/// Side of the window of structural_similarity().
inline constexpr int64_t kSimilarityWindow = 11;

/// Returns the peak signal-to-noise ratio in dB: 10 log10(1 / e), where e is the mean squared difference over pixels
/// and channels, which are in [0, 1]. Equal pictures have 100 dB, because e counts as 1e-10 at least.
/// Errors ("evaluate"): pictures of different sizes.
double peak_signal_to_noise(const data::Picture& a, const data::Picture& b);

/// Returns the structural similarity of Wang et al. 2004 (IEEE Transactions on Image Processing 13, pages 600 to 612),
/// at most 1: the mean over the three channels and over all windows of 11 x 11 pixels inside the picture, with Gaussian
/// weights of deviation 1.5, and with constants (0.01)^2 and (0.03)^2 for pixels in [0, 1].
/// Errors ("evaluate"): pictures of different sizes, or smaller than a window.
double structural_similarity(const data::Picture& a, const data::Picture& b);

}  // namespace colossal::evaluate
