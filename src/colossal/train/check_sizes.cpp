#include "colossal/train/check_sizes.h"

#include "colossal/models/task_batch.h"

namespace colossal::train {

void check_sizes(const distributed::ParallelConfig& parallel, const models::ModelShape& shape) {
  const bool has_tokens = models::example_batch(shape, 1, 1).has_tokens();
  parallel::check_sizes(parallel.tensor, shape.hidden, 0, has_tokens ? 0 : shape.positions);
  if (!has_tokens)
    parallel::check_sequence(parallel.sequence, shape.positions, parallel::sequence_parts(parallel.tensor));
}

}  // namespace colossal::train
