// Batches, weights and an objective for diffusion models, whose prediction is compared with given targets.
#pragma once
#include <cstdint>
#include <memory>

#include "colossal/models/shape.h"
#include "colossal/run/objective.h"
#include "colossal/tensor/batch.h"
#include "colossal/train/engine.h"

namespace colossal::test {

/// Returns random pictures or clips, times, targets, and classes or text states for a denoiser, in fp64, and what else
/// it is told; one row has the null class. Rows of clips have a given frame each, captions with pads, and one row has
/// no caption.
tensor::Batch noised_pictures(const models::ModelShape& shape, int64_t rows, int64_t seed);

/// Returns the objective that sums the squares of prediction - targets. It opens no data.
std::shared_ptr<const run::Objective> prediction_objective(const models::ModelShape& shape);

/// Replaces the weights of the main model by random ones, the same in every layout. A DiT starts with weights of 0
/// behind which no gradient arrives.
void set_random_weights(train::Engine& engine);

}  // namespace colossal::test
