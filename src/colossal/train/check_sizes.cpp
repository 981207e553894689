#include "colossal/train/check_sizes.h"

#include "colossal/models/task.h"

namespace colossal::train {

void check_sizes(const distributed::ParallelConfig& parallel, const models::ModelShape& shape) {
  const bool has_images = shape.task().reads == models::Reads::Images;
  parallel::check_sizes(parallel.tensor, shape.hidden, 0, has_images ? shape.positions : 0);
  if (has_images)
    parallel::check_sequence(parallel.sequence, shape.positions, parallel::sequence_parts(parallel.tensor));
}

}  // namespace colossal::train
