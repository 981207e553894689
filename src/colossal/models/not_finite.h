// Finds the part of a model whose numbers are not finite, as those of fp16 beyond 65504 are.
//
//   const std::string where = first_not_finite(model, stage, states, step);     // "blocks.17"
#pragma once
#include <string>

#include "colossal/models/model.h"

namespace colossal::models {

/// Runs a stage again, block by block, and returns the name of the first part after which a state is not finite:
/// "embedding", "blocks.<i>" or "norm"; "" = all are finite. Collective where the layers are. Cost: a pass. Errors:
/// those of run_stage().
std::string first_not_finite(const Model& model, const Stage& stage, States states, const nn::ForwardContext& step);

/// Returns the remedy for numbers of that dtype which are not finite, for the end of a message.
std::string finite_remedy(at::ScalarType dtype);

}  // namespace colossal::models
