#include "colossal/optim/elementwise.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace colossal::optim {

void ElementwiseOptimizer::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  memory::for_leases(shards_, kUpdate, [&](size_t, memory::Resident& shard) {
    for_updates(config_, shard, step, gradient_scale, false, [&](const Run& run) {
      update(run, states_.of(shard, run.offset, run.size), step, learning_rate * run.rate);
    });
  });
}

std::vector<StateTensor> ElementwiseOptimizer::state() {
  std::vector<StateTensor> tensors;
  states_.add_to(tensors, shards_);
  return tensors;
}

}  // namespace colossal::optim
