// Hyperparameters of one step of Adam or AdamW.
#pragma once
#include <cstdint>

namespace colossal::ops {

struct AdamStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;  ///< decoupled: p *= 1 - learning_rate * weight_decay before the step (AdamW)
  double penalty = 0;       ///< L2 penalty of Adam: g += penalty * p
  int64_t step = 1;         ///< number of this step, counted from 1, for the bias correction
};

}  // namespace colossal::ops
