// The floating-point operations of training steps, for the metric mfu.
//
//   SampleFlops flops(model.shape, objective);
//   work += static_cast<double>(batch.rows()) * flops.of(batch);
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/run/objective.h"
#include "colossal/tensor/batch.h"

namespace colossal::train {

/// Counts by models::costs_of(). `shape` and `objective` must outlive it.
class SampleFlops {
 public:
  /// Errors: models::UnknownCosts. Cost: a pass on shapes.
  SampleFlops(const models::ModelShape& shape, const run::Objective& objective);
  /// Returns the operations of a training step on one sample of a batch: those of the objective's example or, if
  /// samples vary in size, of one with the sizes of the batch. Cost: a pass on shapes for each new size.
  double of(const tensor::Batch& batch);
  double of_example() const { return of_example_; }

 private:
  const models::ModelShape& shape_;
  const run::Objective& objective_;
  double of_example_;
  std::map<std::vector<int64_t>, double> known_;  // by the sizes of all fields
};

}  // namespace colossal::train
