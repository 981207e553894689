#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/optim/rules.h"
#include "colossal/tensor/device_meant.h"

namespace colossal::optim {
namespace {

/// Returns trust |w| / (|g| + decay |w|), or 1 if a norm is 0: fp64, one value per norm.
at::Tensor local_rates(const at::Tensor& of_values, const at::Tensor& of_gradients, double trust, double decay) {
  // LibTorch runs masked_fill and bitwise operators on meta, but not where and logical_and.
  const at::Tensor both = (of_values > 0).bitwise_and(of_gradients > 0);
  return (trust * of_values / (of_gradients + decay * of_values)).masked_fill(both.bitwise_not(), 1);
}

/// Returns a rate on the host; any value for a tensor without data.
double value_of(const at::Tensor& rate) { return rate.is_meta() ? 1 : *rate.const_data_ptr<double>(); }

/// Returns the update with a gradient that includes `decay` and `rate`. `rate` is a value on a device, so the host does
/// not wait for it. Cost: several buffers as long as the update.
ops::FlatUpdate rated(ops::FlatUpdate update, const at::Tensor& rate, double decay) {
  const at::ScalarType type = update.values.scalar_type(), wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor gradient = update.gradients.to(wide) * update.gradient_scale + decay * update.values.to(wide);
  update.gradients = (gradient * rate).to(type);
  update.gradient_scale = 1;
  return update;
}

class Lars : public TensorwiseOptimizer {
 public:
  Lars(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  ShardStates states_;
};

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
  const at::Tensor norms = tensors().norms({squares_of_values, squares_of_gradients});
  const at::Tensor of_values = norms[0], of_gradients = norms[1] * gradient_scale;
  memory::for_leases(shards(), kUpdate, [&](size_t, memory::Resident& shard) {
    const auto update = [&](const LogicalTensors::Part& part) {
      const Run run = run_of(config(), shard, part.piece, step, gradient_scale);
      const auto tensor = static_cast<int64_t>(part.tensor);
      const bool adapts = tensors().entry(run.first).shape.size() > 1;
      const at::Tensor rate =
          adapts ? local_rates(of_values[tensor], of_gradients[tensor], config().trust, run.weight_decay)
                 : at::Tensor();
      const bool on_host = !adapts || tensor::is_for_cpu(rate);
      const ops::SgdStep sgd{.learning_rate = 1,
                             .momentum = config().momentum,
                             .weight_decay = on_host ? run.weight_decay : 0,
                             .intake = learning_rate * run.rate * (adapts && on_host ? value_of(rate) : 1)};
      const auto states = states_.of(shard, run.offset, run.size);
      const auto momentum = [](const auto& of) { return of.empty() ? at::Tensor() : of[0]; };
      if (on_host) return ops::sgd_(run.update, momentum(states), sgd);
      ops::in_slices(run.update, states, [&](const ops::FlatUpdate& slice, const auto& slice_states) {
        ops::sgd_(rated(slice, rate, run.weight_decay), momentum(slice_states), sgd);
      });
    };
    for (const memory::Piece& piece : shard.pieces)
      for (const LogicalTensors::Part& part : tensors().parts(piece)) update(part);
  });
}

void Lars::add_to(std::vector<StateTensor>& state) const { states_.add_to(state, shards()); }

}  // namespace

std::unique_ptr<Optimizer> make_lars(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                     const LogicalTensors& tensors) {
  return std::make_unique<Lars>(config, shards, tensors);
}

}  // namespace colossal::optim
