// Standard deviations of the initial weights of linear layers and convolutions, by their sizes.
//
//   make.expand("blocks.0.mlp.up", 64, 256, {.deviation = glorot(64, 256)});
#pragma once
#include <cmath>
#include <cstdint>

namespace colossal::models {

/// Returns the deviation of Glorot and Bengio (2010) for a layer of `in` to `out` features.
inline double glorot(int64_t in, int64_t out) { return std::sqrt(2.0 / static_cast<double>(in + out)); }

/// Returns the deviation of the uniform distribution with bound 1 / sqrt(in), from which torch draws the weights of a
/// layer of `in` inputs.
inline double of_inputs(int64_t in) { return 1 / std::sqrt(3.0 * static_cast<double>(in)); }

}  // namespace colossal::models
