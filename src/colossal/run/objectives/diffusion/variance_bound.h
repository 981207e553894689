// The variational bound of a variance that a diffusion model predicts beside the noise (arXiv:2102.09672).
//
//   const VarianceBound bound({.schedule = "linear"});
//   const at::Tensor bits = bound.of_rows({pictures, noised, times, noise.detach(), variance});      // [B]
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/noise/noise_levels.h"

namespace colossal::run {

/// Tensors [B, C, h, w], but for `times` [B].
struct VarianceInputs {
  at::Tensor pictures;  ///< x_0, in [-1, 1]
  at::Tensor noised;    ///< x_t
  at::Tensor times;     ///< whole numbers, the noise levels t
  at::Tensor noise;     ///< the predicted noise; without a gradient it holds the mean of the posterior fixed
  at::Tensor variance;  ///< v: the log-variance is f log beta + (1 - f) log beta~, f = (v + 1) / 2
};

/// The terms of the bound for one table of noise levels.
class VarianceBound {
 public:
  explicit VarianceBound(const noise::NoiseOptions& levels);

  /// Returns the term of each row's level, [B], in bits per element: the divergence of the predicted posterior of
  /// x_{t-1} from the true one, and for level 0 the negative log-likelihood of the picture in steps of 1/255 of its
  /// range.
  at::Tensor of_rows(const VarianceInputs& inputs) const;

 private:
  at::Tensor factors_;  // fp64 [T, 6], the numbers of each level
};

}  // namespace colossal::run
