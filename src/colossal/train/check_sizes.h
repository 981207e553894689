// Checks of the sizes of models and samples, which config.validate() cannot make, because it has neither.
//
//   config.validate();
//   train::check_sizes(config.parallel, shape, objective.example(1));
#pragma once
#include "colossal/distributed/config.h"
#include "colossal/models/shape.h"
#include "colossal/tensor/batch.h"

namespace colossal::train {

/// Checks the sizes of a model and of the samples that `example` has. A sample without tokens has the positions of the
/// model. Errors: a hidden size or a number of tokens that tensor or sequence parallelism cannot split; errors of
/// distributed::check_experts(), such as a dense model with parallel.expert.
void check_sizes(const distributed::ParallelConfig& parallel, const models::ModelShape& shape,
                 const tensor::Batch& example);

}  // namespace colossal::train
