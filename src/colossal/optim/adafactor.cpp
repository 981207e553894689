#include "colossal/optim/adafactor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace colossal::optim {

Adafactor::Adafactor(const OptimizerConfig& config, std::vector<memory::Shard>& shards, comm::Mesh& mesh)
    : TensorwiseOptimizer(config, shards, mesh), moments_(shards, tensors()) {}

void Adafactor::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const auto directions = scaled_gradients(shards(), gradient_scale);
  moments_.update(shards(), directions, 1 - std::pow(static_cast<double>(step), -0.8));
  moments_.divide(shards(), directions);
  const auto norms = tensors().norms(shards(), {values_of(shards()), directions});
  for (size_t i = 0; i < shards().size(); ++i)
    for (const memory::Piece& piece : shards()[i].pieces) {
      const size_t tensor = tensors().index(*piece.parameter);
      const double root = std::sqrt(static_cast<double>(piece.parameter->spec.numel()));
      const double of_values = norms[0][tensor] / root, of_direction = norms[1][tensor] / root;
      at::Tensor values = of_piece(shards()[i].values, piece);
      if (piece.parameter->decay) values.mul_(1 - learning_rate * config().weight_decay);
      values.add_(of_piece(directions[i], piece), -learning_rate * std::max(1e-3, of_values) / std::max(1.0, of_direction));
    }
  round_copies(shards());
}

void Adafactor::add_to(std::vector<StateTensor>& state) const {
  moments_.add_to(state, shards());
}

}  // namespace colossal::optim
