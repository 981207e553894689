// Projections to a few outputs per token, at the end of a model.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/forward_context.h"

namespace colossal::nn {

struct Pictures;  // nn/convolution.h

/// A projection to a few outputs per token, such as predictions of a regression, rewards or values:
/// y [B, S, out] = x [B, S, H] W^T + b.
///
///   std::shared_ptr<nn::Outputs> values = layers.outputs("head.values", s.hidden, 1, {});
///   model.norm = [=](const at::Tensor& x, const nn::ForwardContext& step) {
///     return values->forward(norm->forward(x), step);
///   };
///
/// With this norm a loss reads the outputs as the end of the model, and the model needs no head.
///
/// Numerics: the product has the dtype of x, to which weight and bias are converted. So a model of 16 bits has outputs
///           in fp32 with x.to(at::kFloat). In a step that decodes (nn::Decoding) the bits of a token do not depend on
///           other tokens.
class Outputs {
 public:
  virtual ~Outputs() = default;
  /// Takes all tokens that this rank has of the batch and returns the outputs [B, S, out] of the whole batch on every
  /// rank. Differentiable: each rank of the model computes the same loss from the result and calls backward() on it;
  /// the gradients are those of one such loss.
  virtual at::Tensor forward(const at::Tensor& hidden, const ForwardContext& step) = 0;
  /// Returns the same of a convolution, for outputs with two LinearOptions::taps: [B, h' * w', out].
  /// Errors ("model"): outputs without two taps.
  virtual at::Tensor forward(const at::Tensor& hidden, const Pictures& pictures, const ForwardContext& step) = 0;
};

}  // namespace colossal::nn
