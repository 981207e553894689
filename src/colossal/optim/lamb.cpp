#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

class Lamb : public TensorwiseOptimizer {
 public:
  Lamb(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
      : TensorwiseOptimizer(config, shards, logical), states_(shards, {"exp_avg", "exp_avg_sq"}) {}
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override { return {.directions = true}; }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  ShardStates states_;
};

void Lamb::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  at::Tensor squares_of_values = tensors().zeros(), squares_of_directions = tensors().zeros();
  ops::AdamStep adam = adam_step(config(), step, learning_rate);
  memory::for_leases(
      shards(),
      {.values = Access::Read, .gradients = Access::Read, .states = Access::Write, .directions = Access::Write},
      [&](size_t, memory::Resident& shard) {
        for_updates(config(), shard, step, gradient_scale, false, [&](const Run& run) {
          const auto states = states_.of(shard, run.offset, run.size);
          adam.weight_decay = run.weight_decay;
          ops::adam_direction_({run.update.values, run.update.gradients, {}, gradient_scale},
                               shard.directions.narrow(0, run.offset, run.size), states[0], states[1], adam);
        });
        tensors().add_squares(shard.pieces, shard.values, squares_of_values);
        tensors().add_squares(shard.pieces, shard.directions, squares_of_directions);
      });
  const at::Tensor norms = tensors().norms({squares_of_values, squares_of_directions});
  // LibTorch runs masked_fill and bitwise operators on meta, but not where and logical_and.
  const at::Tensor both = (norms[0] > 0).bitwise_and(norms[1] > 0);
  const TensorFactors trust((norms[0] / norms[1]).masked_fill(both.bitwise_not(), 1));
  for_parts([&](memory::Resident& shard, const LogicalTensors::Part& part) {
    const double scale = trust.take(of_piece(shard.directions, part.piece), part.tensor);
    descend(shard, part.piece, shard.directions, {.rate = learning_rate, .weight_decay = 0, .scale = scale});
  });
}

void Lamb::add_to(std::vector<StateTensor>& state) const { states_.add_to(state, shards()); }

}  // namespace

std::unique_ptr<Optimizer> make_lamb(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                     const LogicalTensors& tensors) {
  return std::make_unique<Lamb>(config, shards, tensors);
}

}  // namespace colossal::optim
