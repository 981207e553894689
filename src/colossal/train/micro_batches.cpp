#include "colossal/train/micro_batches.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>

#include "colossal/base/error.h"

namespace colossal::train {

using comm::Phase;
using comm::PhaseScope;

MicroBatches::MicroBatches(Optimization& optimization, comm::World& world, int64_t count, LossOf loss_of)
    : optimization_(optimization), world_(world), count_(count), loss_of_(loss_of) {
  optimization_.watch();
}

void MicroBatches::zero_grad() {
  optimization_.zero_grad();
  losses_.clear();
  weights_.clear();
}

int64_t MicroBatches::losses_of_step() const { return count_ * (loss_of_ == LossOf::Rank ? world_.size() : 1); }

void MicroBatches::require_room() const {
  require(done() < count_, "training", "a step has training.accumulate micro-batches: got more than ", count_,
          "; call step() and zero_grad() in between, or raise training.accumulate");
}

void MicroBatches::backward(const at::Tensor& loss, double weight) {
  require(loss.numel() == 1 && loss.requires_grad(), "training",
          "backward() needs a scalar loss that depends on parameters: got ", loss.numel(), " elements",
          loss.requires_grad() ? "" : " without a gradient");
  require(std::isfinite(weight) && weight >= 0, "training",
          "the weight of a loss must be a finite number of 0 or more: got ", weight,
          "; pass the number of tokens, or of rows, that the loss is the mean of");
  require_room();
  const PhaseScope phase(world_.traffic(), Phase::Backward);
  losses_.push_back(loss.detach());
  weights_.push_back(weight);
  const bool last = done() == count_;
  optimization_.reducer().begin(last);
  // Gradients are sums over micro-batches, and over ranks if each has a loss of its own.
  const double share = optimization_.loss_scale(weight, losses_of_step());
  // If fp16 cannot represent the scaled share, it must overflow in backward, where it is detected and skipped, and not
  // here.
  const at::Tensor wide = loss.to(loss.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  wide.backward(at::full_like(wide, share));
  if (last) optimization_.reducer().finish();
  optimization_.close_pass();
}

StepResult MicroBatches::step() {
  require(done() == count_, "training", "a step has training.accumulate = ", count_, " micro-batches: got ", done(),
          " calls of backward() since zero_grad()");
  const PhaseScope phase(world_.traffic(), Phase::Optimizer);
  const std::vector<double> losses = optimization_.read_before_step(losses_);
  double sum = 0;
  for (size_t i = 0; i < losses.size(); ++i)
    if (weights_[i] > 0) sum += weights_[i] * losses[i];  // the mean over no token is NaN
  weight_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  loss_ = sum / weight_;
  if (loss_of_ == LossOf::AllRanks) return optimization_.step();
  return optimization_.step(LossWeights{.own = weight_, .losses = losses_of_step()});
}

}  // namespace colossal::train
