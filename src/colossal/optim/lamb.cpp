#include "colossal/optim/lamb.h"

#include <ATen/ATen.h>

#include "colossal/optim/adam.h"

namespace colossal::optim {

void Lamb::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> directions = scaled_gradients(shards(), gradient_scale);
  ops::AdamStep adam = adam_step(config(), step, -1);
  adam.weight_decay = -1;  // 0 times what was there: the step from 0 leads to r itself, which takes the gradient's place
  for (size_t i = 0; i < shards().size(); ++i)
    for_updates(config(), shards()[i], step, gradient_scale, false, [&](const Run& run) {
      const auto states = states_.of(i, run.offset, run.size);
      at::Tensor direction = directions[i].narrow(0, run.offset, run.size);
      ops::adam_({direction, direction}, states[0], states[1], adam);
      if (run.weight_decay != 0) direction.add_(run.update.values, run.weight_decay);
    });
  const auto norms = tensors().norms(shards(), {values_of(shards()), directions});
  for (size_t i = 0; i < shards().size(); ++i)
    for (const memory::Piece& piece : shards()[i].pieces) {
      const size_t tensor = tensors().index(*piece.parameter);
      const double of_values = norms[0][tensor], of_direction = norms[1][tensor];
      const double trust = of_values > 0 && of_direction > 0 ? of_values / of_direction : 1;
      of_piece(shards()[i].values, piece).add_(of_piece(directions[i], piece), -learning_rate * trust);
    }
  round_copies(shards());
}

void Lamb::add_to(std::vector<StateTensor>& state) const {
  states_.add_to(state, shards());
}

}  // namespace colossal::optim
