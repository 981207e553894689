#include "colossal/optim/came.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace colossal::optim {

Came::Came(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
    : TensorwiseOptimizer(config, shards, logical),
      moments_(shards, tensors()),
      instability_(tensors(), "instability"),
      averages_(shards, {"exp_avg"}) {}

void Came::step(int64_t, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const std::vector<double>& betas = config().betas;
  const auto gradients = gradients_of(shards()), updates = direction_buffers(shards());
  moments_.update(shards(), gradients, gradient_scale, betas[1]);
  const auto norms = tensors().norms({moments_.divide(shards(), gradients, gradient_scale, updates)})[0];
  std::vector<at::Tensor> averages;
  for (size_t i = 0; i < shards().size(); ++i) averages.push_back(averages_.of(i)[0]);
  // from here on updates are how far they are from what was expected
  for_pieces([&](size_t i, const memory::Piece& piece, size_t tensor) {
    const double rms = norms[tensor] / std::sqrt(static_cast<double>(piece.parameter->spec.numel()));
    ops::average_(of_piece(updates[i], piece), 1 / std::max(1.0, rms), of_piece(averages[i], piece), 1 - betas[0]);
  });
  instability_.update(shards(), updates, 1, betas[2], 1e-16);
  instability_.divide(shards(), averages, 1, updates);
  for_pieces([&](size_t i, const memory::Piece& piece, size_t) {
    const at::Tensor& direction = FactoredMoments::is_matrix(*piece.parameter) ? updates[i] : averages[i];
    descend(shards()[i], piece, direction, {.rate = learning_rate, .weight_decay = config().weight_decay});
  });
}

void Came::add_to(std::vector<StateTensor>& state) const {
  averages_.add_to(state, shards());
  moments_.add_to(state, shards());
  instability_.add_to(state);
}

}  // namespace colossal::optim
