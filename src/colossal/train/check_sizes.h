// Sizes of a model that config.validate() cannot know.
//
//   config.validate();
//   train::check_sizes(config.parallel, shape);
#pragma once
#include "colossal/distributed/config.h"
#include "colossal/models/shape.h"

namespace colossal::train {

/// Errors: a hidden size that the tensor mode cannot split; of a model of images also a number of positions that tensor
/// or sequence parallelism cannot split, because they are no samples of data.sequence tokens.
void check_sizes(const distributed::ParallelConfig& parallel, const models::ModelShape& shape);

}  // namespace colossal::train
