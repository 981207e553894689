// The result of Engine::step() and ModuleTraining::step().
#pragma once
#include <vector>

#include "colossal/base/metric.h"

namespace colossal::train {

/// The results of a training step, the same on all ranks.
struct StepResult {
  double learning_rate;
  double gradient_norm;  ///< before clipping: the L2 norm, or the largest magnitude if training.clip_by is "largest"
  bool skipped = false;  ///< true: gradients overflowed in fp16, and parameters are unchanged
  /// One row per loss term of the model (nn::Reports::add_loss), then the rows that models::Model::end_step added.
  std::vector<Metric> rows{};
};

}  // namespace colossal::train
