#include "colossal/tensor/replica_rows.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/tensor/batch.h"

namespace colossal::tensor {

void ReplicaRows::check() const {
  require(replicas >= 1 && replica >= 0 && replica < replicas, "data", "the replica must be in [0, ", replicas,
          "): got ", replica);
  require(micro_batches >= 1 && batch_size >= 1 && batch_size % (micro_batches * replicas) == 0, "data",
          "batch_size must be divisible by the replicas times the micro-batches: got ", batch_size, " rows, ", replicas,
          " replicas, ", micro_batches, " micro-batches; change training.batch_size");
}

Batch ReplicaRows::of(const Batch& batch) const {
  check();
  require(batch.rows() == batch_size, "data", "the global batch must have ", batch_size, " rows: got ", batch.rows());
  return batch.map([&](const Field& field) {
    return field.tensor.unflatten(0, {micro_batches, replicas, of_micro_batch()}).select(1, replica).flatten(0, 1);
  });
}

}  // namespace colossal::tensor
