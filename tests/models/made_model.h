// A model in fp64 and sines for its inputs, for tests of families whose golden values were computed so.
//
//   Made made(shape);
//   const at::Tensor x = sines(.3, .1, {1, 4, 8, 8});
#pragma once
#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "colossal/models/registry.h"
#include "colossal/nn/serial_layers.h"

namespace colossal::models {

/// A model with its parameters. Without memory it has shapes alone.
struct Made {
  explicit Made(const ModelShape& shape, bool has_memory = true, at::ScalarType dtype = at::kDouble)
      : parameters({}, {.dtype = dtype, .without_memory = !has_memory}) {
    nn::SerialLayers layers(parameters);
    model = make_model(shape, layers);
  }
  nn::Parameters parameters;
  Model model;
};

/// Returns the sines of a * i + b, for i from 0, row by row.
inline at::Tensor sines(double a, double b, const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return (at::arange(count, at::TensorOptions(at::kDouble)) * a + b).sin().view(sizes);
}

}  // namespace colossal::models
