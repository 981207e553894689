// Sines and cosines of times and of places: fixed features of which a model learns functions.
//
//   const at::Tensor x = nn::time_sinusoids(times, 256, {.cosines_first = true});      // [B] -> [B, 256]
//   const at::Tensor table = nn::picture_positions(16, 16, 384);                       // [256, 384]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::nn {

/// The two forms of time_sinusoids() that published models have.
struct SinusoidOptions {
  bool cosines_first = false;  ///< diffusers calls it flip_sin_to_cos
  double shift = 0;            ///< diffusers calls it downscale_freq_shift; 0 or 1
};

/// Returns sin(w_k t) and cos(w_k t) of each time t, with w_k = 10000^(-k / (features / 2 - shift)) for k from 0: first
/// all sines, then all cosines, or the other way round (arXiv:1706.03762, arXiv:2006.11239).
///
/// Shapes:  times [B] of any type -> [B, features].
/// Numbers: those of `times`, at least fp32, because bf16 cannot hold 999. The w_k are computed in fp64.
/// Errors ("model"): an odd number of features; a shift of half of them or more.
at::Tensor time_sinusoids(const at::Tensor& times, int64_t features, const SinusoidOptions& options);

/// Returns the fixed positions of the patches of a picture, row by row (arXiv:2212.09748): [rows * columns, features],
/// fp64. The first half of the features is of the column, the second of the row. Each half has the sines of w_k times
/// the index, then the cosines, with w_k = 10000^(-k / (features / 4)).
/// Errors ("model"): features that 4 does not divide.
at::Tensor picture_positions(int64_t rows, int64_t columns, int64_t features);
/// Returns the same for rows [R] and columns [C] at places that are no indices: [R * C, features], fp64.
at::Tensor picture_positions(const at::Tensor& rows, const at::Tensor& columns, int64_t features);

}  // namespace colossal::nn
