// Values of tokens, by a value model or by a head of values on the policy: what PPO learns beside the policy.
//
//   const at::Tensor values = token_values(model, end, step);              // [B, T]
//   const TokenTerms terms = value_losses(values, old, returns, counts, 0.2);
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/models/model.h"
#include "colossal/nn/forward_context.h"

namespace colossal::run {

/// Returns the value of each token of step.batch: [B, T] on the device of the model, the same on all ranks of the
/// model, computed in fp32 (fp64 in fp64 models). It is the first output of a model with outputs, whose end they are,
/// or that of the head of values of a policy (models::with_values).
///
/// Gradients: those of nn::Outputs::forward(): each rank of the model computes the same loss from the values.
/// Communication: none for a model with outputs, because `end` has those of all tokens of the batch. For a head of
/// values that of nn::Outputs::forward().
/// Errors ("model"): a model with neither.
at::Tensor token_values(const models::Model& model, const models::States& end, const nn::ForwardContext& step);

}  // namespace colossal::run
