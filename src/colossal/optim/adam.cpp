#include "colossal/optim/adam.h"

#include <ATen/ATen.h>

namespace colossal::optim {

ops::AdamStep adam_step(const OptimizerConfig& config, int64_t step, double learning_rate) {
  return {.learning_rate = learning_rate,
          .beta1 = config.betas[0],
          .beta2 = config.betas[1],
          .epsilon = config.epsilon,
          .step = step};
}

void Adam::update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) {
  ops::AdamStep s = adam_step(config(), step, learning_rate);
  (decay_ == Decay::Penalty ? s.penalty : s.weight_decay) = run.weight_decay;
  ops::adam_(run.update, states[0], states[1], s);
}

}  // namespace colossal::optim
