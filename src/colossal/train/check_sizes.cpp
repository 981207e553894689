#include "colossal/train/check_sizes.h"

#include <algorithm>

#include "colossal/distributed/distributed_model.h"

namespace colossal::train {

void check_sizes(const distributed::ParallelConfig& parallel, const models::ModelShape& shape,
                 const tensor::Batch& example) {
  distributed::check_experts(parallel, shape);
  const int64_t tokens = example.has_tokens() ? example.tokens() : std::max<int64_t>(1, shape.positions);
  parallel::check_sizes(parallel.tensor, shape.hidden, 0, tokens);
  parallel::check_sequence(parallel.sequence, tokens, parallel::sequence_parts(parallel.tensor));
}

}  // namespace colossal::train
