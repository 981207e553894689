// Runs a whole model without a pipeline.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/models/model.h"
#include "colossal/nn/forward_context.h"

namespace colossal::models {

/// Returns the input of the head, this rank's part, for token ids [B, S] or images [B, C, side, side].
inline at::Tensor hidden_states(const Model& model, const at::Tensor& inputs, nn::ForwardContext step) {
  using tensor::Dim;
  tensor::Batch batch;
  if (inputs.dim() == 2)
    batch.add("ids", {inputs, {Dim::Row, Dim::Token}});
  else
    batch.add("images", {inputs, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  step.batch = std::make_shared<const tensor::Batch>(std::move(batch));
  return run_stage(model, {0, static_cast<int64_t>(model.blocks.size())}, {}, step)[0];
}

}  // namespace colossal::models
