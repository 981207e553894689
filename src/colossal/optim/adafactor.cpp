#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "colossal/optim/factored.h"
#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

class Adafactor : public TensorwiseOptimizer {
 public:
  Adafactor(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override { return {.directions = true}; }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  SecondMoments moments_;
};

Adafactor::Adafactor(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical), moments_(shards, tensors()) {}

void Adafactor::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  moments_.begin(gradient_scale, 1 - std::pow(static_cast<double>(step), -0.8));
  memory::for_leases(shards(), {.gradients = Access::Read, .states = Access::Write},
                     [&](size_t i, memory::Resident& shard) { moments_.add(i, shard, shard.gradients); });
  moments_.update();
  at::Tensor squares_of_values = tensors().zeros(), squares_of_directions = tensors().zeros();
  memory::for_leases(
      shards(),
      {.values = Access::Read, .gradients = Access::Read, .states = Access::Read, .directions = Access::Write},
      [&](size_t i, memory::Resident& shard) {
        moments_.divide(i, shard, shard.gradients, gradient_scale, shard.directions, squares_of_directions);
        tensors().add_squares(shard.pieces, shard.values, squares_of_values);
      });
  const at::Tensor mean_squares =
      tensors().norms({squares_of_values, squares_of_directions}) / tensors().roots_of_sizes();
  const TensorFactors factors(mean_squares[0].clamp_min(1e-3) / mean_squares[1].clamp_min(1.0));
  for_parts([&](memory::Resident& shard, const LogicalTensors::Part& part) {
    descend(shard, part.piece, shard.directions,
            {.rate = learning_rate,
             .weight_decay = config().weight_decay,
             .scale = factors.take(of_piece(shard.directions, part.piece), part.tensor)});
  });
}

void Adafactor::add_to(std::vector<StateTensor>& state) const { moments_.add_to(state, shards()); }

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                          const LogicalTensors& tensors) {
  return std::make_unique<Adafactor>(config, shards, tensors);
}

}  // namespace colossal::optim
