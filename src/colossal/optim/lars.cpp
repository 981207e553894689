#include "colossal/optim/lars.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/optim/sgd.h"

namespace colossal::optim {
Lars::Lars(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical), states_(shards, momentum_states(config)) {}

void Lars::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  at::Tensor squares_of_values = tensors().zeros(), squares_of_gradients = tensors().zeros();
  memory::for_leases(shards(), {.values = Access::Read, .gradients = Access::Read},
                     [&](size_t, memory::Resident& shard) {
                       tensors().add_squares(shard.pieces, shard.values, squares_of_values);
                       tensors().add_squares(shard.pieces, shard.gradients, squares_of_gradients);
                     });
  const auto norms = tensors().norms({squares_of_values, squares_of_gradients});
  memory::for_leases(shards(), kUpdate, [&](size_t, memory::Resident& shard) {
    for_updates(config(), shard, step, gradient_scale, true, [&](const Run& run) {
      const size_t tensor = tensors().index(run.first);
      const double of_values = norms[0][tensor], of_gradient = norms[1][tensor] * gradient_scale;
      const bool adapts = run.first.spec.shape.size() > 1 && of_values > 0 && of_gradient > 0;
      const double local_rate = adapts ? config().trust * of_values / (of_gradient + run.weight_decay * of_values) : 1;
      const auto states = states_.of(shard, run.offset, run.size);
      ops::sgd_(run.update, states.empty() ? at::Tensor() : states[0],
                {.learning_rate = 1,
                 .momentum = config().momentum,
                 .weight_decay = run.weight_decay,
                 .intake = learning_rate * run.rate * local_rate});
    });
  });
}

void Lars::add_to(std::vector<StateTensor>& state) const { states_.add_to(state, shards()); }

}  // namespace colossal::optim
