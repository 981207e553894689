#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/optim/factored.h"
#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

class Came : public TensorwiseOptimizer {
 public:
  Came(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override { return {.directions = true}; }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  SecondMoments moments_;
  FactoredMoments instability_;
  ShardStates averages_;
};

Came::Came(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical),
      moments_(shards, tensors()),
      instability_(tensors(), "instability"),
      averages_(shards, {"exp_avg"}) {}

void Came::step(int64_t, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const std::vector<double>& betas = config().betas;
  moments_.begin(gradient_scale, betas[1]);
  memory::for_leases(shards(), {.gradients = Access::Read, .states = Access::Write, .places = moments_.places()},
                     [&](size_t i, memory::Resident& shard) { moments_.add(i, shard, shard.gradients); });
  moments_.update();
  at::Tensor squares = tensors().zeros();
  memory::for_leases(
      shards(),
      {.gradients = Access::Read, .states = Access::Read, .places = moments_.places(), .directions = Access::Write},
      [&](size_t i, memory::Resident& shard) {
        moments_.divide(i, shard, shard.gradients, gradient_scale, shard.directions, squares);
      });
  const at::Tensor mean_squares = tensors().norms({squares})[0] / tensors().roots_of_sizes();
  const TensorFactors factors(1 / mean_squares.clamp_min(1.0));
  instability_.begin(1, betas[2], 1e-16);
  // From here on `directions` holds u - m, the deviation of the updates from their average.
  memory::for_leases(shards(), {.states = Access::Write, .places = averages_.places(), .directions = Access::Write},
                     [&](size_t, memory::Resident& shard) {
                       const at::Tensor update = shard.directions, average = averages_.of(shard, 0);
                       for (const memory::Piece& piece : shard.pieces)
                         for (const LogicalTensors::Part& part : tensors().parts(piece)) {
                           const at::Tensor own = of_piece(update, part.piece);
                           const double factor = factors.take(own, part.tensor);
                           ops::average_(own, factor, of_piece(average, part.piece), 1 - betas[0]);
                         }
                       instability_.add(shard.pieces, update);
                     });
  instability_.update();
  memory::for_leases(
      shards(),
      {.values = Access::Write, .states = Access::Read, .places = averages_.places(), .directions = Access::Read},
      [&](size_t, memory::Resident& shard) {
        const at::Tensor update = shard.directions, average = averages_.of(shard, 0);
        instability_.divide(shard.pieces, average, 1, update, squares);
        for (const memory::Piece& piece : shard.pieces)
          descend(shard, piece, instability_.is_matrix(*piece.parameter) ? update : average,
                  {.rate = learning_rate, .weight_decay = config().weight_decay});
      });
}

void Came::add_to(std::vector<StateTensor>& state) const {
  averages_.add_to(state, shards());
  moments_.add_to(state, shards());
  instability_.add_to(state);
}

}  // namespace

std::unique_ptr<Optimizer> make_came(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                     const LogicalTensors& tensors) {
  return std::make_unique<Came>(config, shards, tensors);
}

}  // namespace colossal::optim
