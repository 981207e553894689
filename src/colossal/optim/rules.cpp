#include "colossal/optim/rules.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace colossal::optim {

void ElementwiseOptimizer::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  memory::for_leases(shards_, kUpdate, [&](size_t, memory::Resident& shard) {
    for_updates(config_, shard, step, gradient_scale, false, [&](const Run& run) {
      update(run, states_.of(shard, run.offset, run.size), step, learning_rate * run.rate);
    });
  });
}

std::vector<StateTensor> ElementwiseOptimizer::state() {
  std::vector<StateTensor> tensors;
  states_.add_to(tensors, shards_);
  return tensors;
}

void TensorwiseOptimizer::adam_or_descend(const PieceStates& others, ops::AdamStep adam, double gradient_scale,
                                          size_t index, memory::Resident& shard, const Descent& descent) const {
  const double learning_rate = adam.learning_rate;
  size_t p = 0;
  for_updates(config_, shard, adam.step, gradient_scale, true, [&](const Run& run) {
    const memory::Piece& piece = shard.pieces[p];
    const auto moments = others.of(index, shard, p++);
    adam.learning_rate = learning_rate * run.rate;
    adam.weight_decay = run.weight_decay;
    if (moments.empty())
      descend(shard, piece, shard.directions, descent);
    else
      ops::adam_(run.update, moments[0], moments[1], adam);
  });
}

std::vector<std::vector<TensorwiseOptimizer::HeldPart>> TensorwiseOptimizer::held_parts() const {
  std::vector<std::vector<HeldPart>> held(tensors_.size());
  for (size_t i = 0; i < shards_.size(); ++i)
    for (const memory::Piece& piece : shards_[i].pieces())
      for (const LogicalTensors::Part& part : tensors_.parts(piece)) held[part.tensor].push_back({i, part.piece});
  return held;
}

std::vector<size_t> TensorwiseOptimizer::shards_of(const std::vector<HeldPart>& parts) {
  std::vector<size_t> numbers;
  for (const HeldPart& part : parts)
    if (numbers.empty() || numbers.back() != part.shard) numbers.push_back(part.shard);
  return numbers;
}

}  // namespace colossal::optim
