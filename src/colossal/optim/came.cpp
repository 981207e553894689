#include "colossal/optim/came.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace colossal::optim {

Came::Came(const OptimizerConfig& config, std::vector<memory::Shard>& shards, comm::Mesh& mesh)
    : TensorwiseOptimizer(config, shards, mesh), moments_(shards, tensors()), instability_(tensors(), "instability"),
      averages_(shards, {"exp_avg"}) {}

void Came::step(int64_t, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const std::vector<double>& betas = config().betas;
  const auto updates = scaled_gradients(shards(), gradient_scale);
  moments_.update(shards(), updates, betas[1]);
  moments_.divide(shards(), updates);
  const auto norms = tensors().norms(shards(), {updates})[0];
  std::vector<at::Tensor> directions;
  for (size_t i = 0; i < shards().size(); ++i) {
    for (const memory::Piece& piece : shards()[i].pieces) {
      const double rms = norms[tensors().index(*piece.parameter)] / std::sqrt(static_cast<double>(piece.parameter->spec.numel()));
      if (rms > 1) of_piece(updates[i], piece).div_(rms);
    }
    at::Tensor average = averages_.of(i)[0];
    average.lerp_(updates[i], 1 - betas[0]);
    at::Tensor(updates[i]).sub_(average);  // from here on how far they are from what was expected
    directions.push_back(average.clone());
  }
  instability_.update(shards(), updates, betas[2], 1e-16);
  instability_.divide(shards(), directions);
  for (size_t i = 0; i < shards().size(); ++i) {
    for (const memory::Piece& piece : shards()[i].pieces)
      if (piece.parameter->decay) of_piece(shards()[i].values, piece).mul_(1 - learning_rate * config().weight_decay);
    at::Tensor(shards()[i].values).add_(directions[i], -learning_rate);
  }
  round_copies(shards());
}

void Came::add_to(std::vector<StateTensor>& state) const {
  averages_.add_to(state, shards());
  moments_.add_to(state, shards());
  instability_.add_to(state);
}

}  // namespace colossal::optim
