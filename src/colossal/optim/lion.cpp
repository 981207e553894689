#include "colossal/optim/lion.h"

#include <ATen/ATen.h>

namespace colossal::optim {

void Lion::update(const Run& run, const std::vector<at::Tensor>& states, int64_t, double learning_rate) {
  ops::lion_(run.update, states[0],
             {.learning_rate = learning_rate,
              .beta1 = config().betas[0],
              .beta2 = config().betas[1],
              .weight_decay = run.weight_decay});
}

}  // namespace colossal::optim
