// The rows of a global batch that one replica reads.
//
//   const tensor::ReplicaRows rows{.batch_size = 8, .micro_batches = 2, .replica = 1, .replicas = 2};
//   const std::vector<int64_t> global{rows.global(0), rows.global(1), rows.global(2), rows.global(3)};   // 2, 3, 6, 7
//   const tensor::Batch own = rows.of(batch);
#pragma once
#include <cstdint>

namespace colossal::tensor {

class Batch;

/// Micro-batch i of m is rows [iB/m, (i+1)B/m) of the global batch in every layout. Replica r of R reads the part
/// [r, r+1)/R of the rows of each micro-batch, and its batch has these parts one after the other. With m = 1 this is
/// the part [r, r+1)/R of the global batch. All members have constant cost, except of().
struct ReplicaRows {
  int64_t batch_size = 0;             ///< rows B of the global batch; a multiple of micro_batches * replicas
  int64_t micro_batches = 1;          ///< number of micro-batches m
  int64_t replica = 0, replicas = 1;  ///< index r and number R of the replicas that read other rows

  /// Returns the number of rows of the replica's batch.
  int64_t count() const { return batch_size / replicas; }
  /// Returns the number of rows of each micro-batch that the replica reads.
  int64_t of_micro_batch() const { return batch_size / (micro_batches * replicas); }
  /// Returns the index in the global batch of row `row` of the replica's batch.
  int64_t global(int64_t row) const {
    const int64_t run = of_micro_batch();
    return (row / run * replicas + replica) * run + row % run;
  }
  /// Errors ("data"): a batch_size below 1 or not divisible by micro_batches * replicas; a replica outside
  ///                  [0, replicas).
  void check() const;
  /// Returns the replica's rows of `batch`, the global batch. With one micro-batch or one replica all fields are views.
  /// Errors ("data"): as check(); a batch with another number of rows.
  Batch of(const Batch& batch) const;
};

}  // namespace colossal::tensor
