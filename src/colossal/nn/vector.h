// Parameters with one value, or one row of values, for each feature.
//
//   const std::unique_ptr<nn::Vector> scale = layers.vector("blocks.0.scale", {64}, {.init = nn::Init::ones()});
//   const std::unique_ptr<nn::Vector> taps = layers.vector("blocks.0.taps", {64, 4}, {.init = nn::Init::normal(0.5)});
//   y = x * scale->value();                                 // x [B, S, 64 or this rank's], value [64 or this rank's]
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "colossal/nn/features.h"
#include "colossal/nn/parameter.h"

namespace colossal::nn {

/// Options of a vector.
struct VectorOptions {
  Place place = Place::Outside;  ///< whose features it follows
  int64_t features = 0;          ///< its dimension of the features
  Init init = Init::zeros();
  bool decay = false;                       ///< whether weight decay applies
  std::vector<tensor::Segment> segments{};  ///< segments of the features; empty = one segment
};

/// A parameter of which a rank uses the part of its features. It is the bias or weight of a norm, a depthwise kernel, a
/// table of positions.
class Vector {
 public:
  virtual ~Vector() = default;
  /// Returns this rank's part, with the padding of Features::room(). Call it once in each forward pass on every rank,
  /// whatever tokens the rank has, because ranks that hold copies wait for its gradients.
  /// Communication: if the layout stores vectors in shards, an all_gather of them, and a reduce_scatter in backward.
  virtual at::Tensor value() const = 0;
  virtual Parameter& parameter() const = 0;
};

}  // namespace colossal::nn
