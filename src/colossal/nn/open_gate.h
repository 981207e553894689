// Linear layers of gates, which start open: weight 0 and bias 1.
//
//   const std::unique_ptr<nn::Dense> gate = nn::open_gate(make, "mha.linear_g", 256, 256, true);
//   y = ops::sigmoid_gate(gate->forward(x), y);
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "colossal/nn/linear_layers.h"

namespace colossal::nn {

class Layers;

/// Makes the layer `name` from `in` to `out` features, whose weight starts at 0, and its bias, if it has one, at 1.
std::unique_ptr<Dense> open_gate(Layers& make, const std::string& name, int64_t in, int64_t out, bool bias);

/// Makes the layer `name`, whose weight and bias start at 0: the last one of a branch, which then adds nothing.
std::unique_ptr<Dense> silent_layer(Layers& make, const std::string& name, int64_t in, int64_t out, bool bias);

/// Makes the layer `name` behind a norm: its weight starts with the standard deviation 1 / sqrt(in).
std::unique_ptr<Dense> normed_layer(Layers& make, const std::string& name, int64_t in, int64_t out, bool bias);

}  // namespace colossal::nn
