// Checks of model sizes that config.validate() cannot make, because it has no model.
//
//   config.validate();
//   train::check_sizes(config.parallel, shape, objective.example(1));
#pragma once
#include "colossal/distributed/config.h"
#include "colossal/models/shape.h"
#include "colossal/tensor/batch.h"

namespace colossal::train {

/// Checks the sizes of a model. Errors: a hidden size that the tensor mode cannot split; errors of
/// distributed::check_experts(), such as a dense model with parallel.expert. If the example has no tokens
/// also a number of positions that tensor or sequence parallelism cannot split, because such samples do not have
/// data.sequence tokens.
void check_sizes(const distributed::ParallelConfig& parallel, const models::ModelShape& shape,
                 const tensor::Batch& example);

}  // namespace colossal::train
