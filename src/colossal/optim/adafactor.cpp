#include "colossal/optim/adafactor.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace colossal::optim {

Adafactor::Adafactor(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical), moments_(shards, tensors()) {}

void Adafactor::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(shards()), directions = direction_buffers(shards());
  moments_.update(shards(), gradients, gradient_scale, 1 - std::pow(static_cast<double>(step), -0.8));
  const at::Tensor squares = moments_.divide(shards(), gradients, gradient_scale, directions);
  const auto norms = tensors().norms({tensors().counted_squares(shards(), values_of(shards())), squares});
  for_pieces([&](size_t i, const memory::Piece& piece, size_t tensor) {
    const double root = std::sqrt(static_cast<double>(piece.parameter->spec.numel()));
    const double of_values = norms[0][tensor] / root, of_direction = norms[1][tensor] / root;
    descend(shards()[i], piece, directions[i],
            {.rate = learning_rate,
             .weight_decay = config().weight_decay,
             .scale = std::max(1e-3, of_values) / std::max(1.0, of_direction)});
  });
}

void Adafactor::add_to(std::vector<StateTensor>& state) const { moments_.add_to(state, shards()); }

}  // namespace colossal::optim
