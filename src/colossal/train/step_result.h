// The result of Engine::step() and ModuleTraining::step().
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/metric.h"

namespace colossal::train {

/// The results of a training step, the same on all ranks.
struct StepResult {
  double learning_rate;
  double gradient_norm;  ///< before clipping: the L2 norm, or the largest magnitude if training.clip_by is "largest"
  bool skipped = false;  ///< true: gradients overflowed in fp16 (gradient_norm is infinite); parameters are unchanged
  /// One row per loss term of the model (nn::Reports::add_loss), then the rows that models::Model::end_step added.
  std::vector<Metric> rows{};
};

/// The error of a step that was refused before it changed anything: weights and states are those of the step before, so
/// they can be saved. All ranks throw it.
class RefusedStep : public Error {
 public:
  /// `needed`: the smallest memory.device with which the step works; 0 = the step was refused for another reason.
  RefusedStep(const std::string& component, const std::string& message, int64_t needed = 0)
      : Error(component, message), needed_(needed) {
    mark_on_all_ranks();
  }
  int64_t needed_bytes() const { return needed_; }

 private:
  int64_t needed_;
};

}  // namespace colossal::train
