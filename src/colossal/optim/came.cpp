#include "colossal/optim/came.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace colossal::optim {

Came::Came(const OptimizerConfig& config, std::vector<memory::Shard>& shards, comm::Mesh& mesh)
    : config_(config), shards_(shards), tensors_(shards, mesh), moments_(shards, tensors_), instability_(tensors_, "instability"),
      averages_(shards, {"exp_avg"}) {}

void Came::step(int64_t, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const std::vector<double>& betas = config_.betas;
  const auto updates = scaled_gradients(shards_, gradient_scale);
  moments_.update(shards_, updates, betas[1]);
  moments_.divide(shards_, updates);
  const auto norms = tensors_.norms(shards_, {updates})[0];
  std::vector<at::Tensor> directions;
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const memory::Piece& piece : shards_[i].pieces) {
      const double rms = norms[tensors_.index(*piece.parameter)] / std::sqrt(static_cast<double>(piece.parameter->spec.numel()));
      if (rms > 1) of_piece(updates[i], piece).div_(rms);
    }
    at::Tensor average = averages_.of(i)[0];
    average.lerp_(updates[i], 1 - betas[0]);
    at::Tensor(updates[i]).sub_(average);  // from here on how far they are from what was expected
    directions.push_back(average.clone());
  }
  instability_.update(shards_, updates, betas[2], 1e-16);
  instability_.divide(shards_, directions);
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const memory::Piece& piece : shards_[i].pieces)
      if (piece.parameter->decay) of_piece(shards_[i].values, piece).mul_(1 - learning_rate * config_.weight_decay);
    at::Tensor(shards_[i].values).add_(directions[i], -learning_rate);
  }
  round_copies(shards_);
}

std::vector<StateTensor> Came::state() {
  std::vector<StateTensor> tensors;
  averages_.add_to(tensors, shards_);
  moments_.add_to(tensors, shards_);
  instability_.add_to(tensors);
  return tensors;
}

}  // namespace colossal::optim
