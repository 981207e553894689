// What Engine::step() and ModuleTraining::step() return.
#pragma once
#include <vector>

#include "colossal/base/metric.h"

namespace colossal::train {

/// What a training step did. The same on all ranks.
struct StepResult {
  double learning_rate;
  double gradient_norm;  ///< before clipping: L2, or the largest magnitude if training.clip_by is "largest"
  bool skipped = false;  ///< gradients overflowed in fp16: parameters are as they were
  /// A row for each loss term of the model (nn::Reports::add_loss), then those that models::Model::end_step added.
  std::vector<Metric> rows{};
};

}  // namespace colossal::train
