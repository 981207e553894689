// Factors by which features are divided in front of linear layers and their weights multiplied: what is hard to round
// moves from one side to the other, and nothing else changes.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/ops/group_codes.h"
#include "colossal/quantization/layer_inputs.h"

namespace colossal::quantization {

/// AWQ (Lin and others, arXiv:2306.00978): fp64 [in], mean |x|^a with that a of 0, 1/20 .. 19/20 with which rounding
/// weight * scales leaves the smallest output_error, of all `weights` [out, in] that read these inputs together. As 0
/// is among them (scales of 1) it is never more than that of rounding the weights themselves.
at::Tensor awq_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs,
                      const ops::RoundingOptions& options);

/// SmoothQuant (Xiao and others, arXiv:2211.10438): fp64 [in], max |x|^alpha / max |w|^(1 - alpha) of each feature,
/// 1 where either is 0.
at::Tensor smoothing_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs, double alpha = 0.5);

}  // namespace colossal::quantization
