// A model run whole, without a pipeline.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/models/model.h"

namespace colossal::models {

/// What the head is given, this rank's part of it.
inline at::Tensor hidden_states(const Model& model, const at::Tensor& inputs, const nn::Step& step) {
  return run_stage(model, {0, static_cast<int64_t>(model.blocks.size())}, inputs, step);
}

}  // namespace colossal::models
