#include "colossal/train/micro_batches.h"

#include <ATen/ATen.h>

#include <numeric>

#include "colossal/base/error.h"

namespace colossal::train {

using comm::Phase;
using comm::PhaseScope;

MicroBatches::MicroBatches(Optimization& optimization, comm::World& world, int64_t count, LossOf loss_of)
    : optimization_(optimization), world_(world), count_(count), loss_of_(loss_of) {}

void MicroBatches::zero_grad() {
  optimization_.zero_grad();
  losses_.clear();
}

void MicroBatches::require_room() const {
  require(done() < count_, "training", "a step has training.accumulate micro-batches: got more than ", count_,
          "; call step() and zero_grad() in between, or raise training.accumulate");
}

void MicroBatches::backward(const at::Tensor& loss) {
  require(loss.numel() == 1 && loss.requires_grad(), "training",
          "backward() needs a scalar loss that depends on parameters: got ", loss.numel(), " elements",
          loss.requires_grad() ? "" : " without a gradient");
  require_room();
  const PhaseScope phase(world_.traffic(), Phase::Backward);
  losses_.push_back(loss.detach());
  const bool last = done() == count_;
  optimization_.reducer().begin(last);
  // Gradients are sums over micro-batches, and over ranks if each has a loss of its own.
  const int64_t summed = count_ * (loss_of_ == LossOf::Rank ? world_.size() : 1);
  const double share = optimization_.loss_scale() / static_cast<double>(summed);
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
  loss_ = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  return optimization_.step();
}

}  // namespace colossal::train
