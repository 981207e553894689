// What Engine::step() and ModuleTraining::step() return.
#pragma once

namespace colossal::train {

/// What a training step did. The same on all ranks.
struct StepResult {
  double learning_rate;
  double gradient_norm;  ///< before clipping: L2, or the largest magnitude if training.clip_by is "largest"
  bool skipped = false;  ///< gradients overflowed in fp16: parameters are as they were
};

}  // namespace colossal::train
