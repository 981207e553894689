#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

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

}  // namespace colossal::optim
