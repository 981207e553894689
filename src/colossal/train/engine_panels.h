// The panels of a model of an engine.
#pragma once
#include "colossal/nn/packed_weights.h"
#include "colossal/train/engine.h"

namespace colossal::train {

struct Engine::Panels {
  explicit Panels(const nn::WeightPacking& packing) : weights(packing) {}
  nn::PackedWeights weights;
  bool is_current = false;  ///< they have the weights after the last update
};

}  // namespace colossal::train
