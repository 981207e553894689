// Per-feature factors: features are divided by them in front of linear layers, and the layers' weights are multiplied
// by them. This moves the difficulty of rounding from one side to the other and changes nothing else.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/ops/products/group_codes.h"
#include "colossal/quantization/layer_inputs.h"

namespace colossal::quantization {

/// Returns the factors of AWQ (Lin and others, arXiv:2306.00978): fp64 [in], mean |x|^a. The exponent a is the one of
/// 0, 1/20 .. 19/20 for which rounding weight * scales leaves the smallest output_error, summed over all `weights`
/// [out, in] that read these inputs. The error is never larger than without factors, because a = 0 (scales of 1) is
/// among the candidates.
at::Tensor awq_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs,
                      const ops::RoundingOptions& options);

/// Returns the factors of SmoothQuant (Xiao and others, arXiv:2211.10438): fp64 [in], max |x|^alpha / max |w|^(1 -
/// alpha) of each feature, or 1 if either is 0.
at::Tensor smoothing_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs, double alpha = 0.5);

}  // namespace colossal::quantization
