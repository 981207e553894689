#include "colossal/quantization/scales.h"

#include <ATen/ATen.h>

#include <limits>

#include "colossal/quantization/gptq.h"

namespace colossal::quantization {

at::Tensor awq_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs,
                      const ops::RoundingOptions& options) {
  constexpr int kExponents = 20;
  at::Tensor best;
  double least = std::numeric_limits<double>::infinity();
  const at::Tensor mean = inputs.mean.clamp_min(1e-4 * inputs.mean.max().item<double>()).clamp_min(1e-30);
  for (int i = 0; i < kExponents; ++i) {
    at::Tensor scales = mean.pow(static_cast<double>(i) / kExponents);
    scales = scales / (scales.max() * scales.min()).sqrt();  // centred on 1, so that weights keep their size
    double error = 0;
    for (const at::Tensor& weight : weights) {
      const at::Tensor w = weight.to(at::kDouble);
      const at::Tensor near = ops::round_to_codes((w * scales).to(at::kFloat), options).values().to(at::kDouble);
      error += output_error(w, near / scales, inputs.moments);
    }
    if (error < least) least = error, best = scales;
  }
  return best.defined() ? best : at::ones_like(mean);
}

at::Tensor smoothing_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs, double alpha) {
  at::Tensor largest = at::zeros_like(inputs.largest);
  for (const at::Tensor& weight : weights) largest = at::maximum(largest, weight.to(at::kDouble).abs().amax(0));
  const at::Tensor scales = inputs.largest.pow(alpha) / largest.pow(1 - alpha);
  return at::where(inputs.largest.gt(0).logical_and(largest.gt(0)), scales, at::ones_like(scales));
}

}  // namespace colossal::quantization
