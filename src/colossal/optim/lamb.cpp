#include "colossal/optim/lamb.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "colossal/optim/adam.h"

namespace colossal::optim {

void Lamb::step(int64_t step, double learning_rate, double gradient_scale) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> directions = direction_buffers(shards());
  ops::AdamStep adam = adam_step(config(), step, learning_rate);
  for (size_t i = 0; i < shards().size(); ++i)
    for_updates(config(), shards()[i], step, gradient_scale, false, [&](const Run& run) {
      const auto states = states_.of(i, run.offset, run.size);
      adam.weight_decay = run.weight_decay;
      ops::adam_direction_({run.update.values, run.update.gradients, {}, gradient_scale},
                           directions[i].narrow(0, run.offset, run.size), states[0], states[1], adam);
    });
  const auto norms = tensors().norms(
      {tensors().counted_squares(shards(), values_of(shards())), tensors().counted_squares(shards(), directions)});
  for_pieces([&](size_t i, const memory::Piece& piece, size_t tensor) {
    const double of_values = norms[0][tensor], of_direction = norms[1][tensor];
    const double trust = of_values > 0 && of_direction > 0 ? of_values / of_direction : 1;
    descend(shards()[i], piece, directions[i], {.rate = learning_rate, .weight_decay = 0, .scale = trust});
  });
}

void Lamb::add_to(std::vector<StateTensor>& state) const { states_.add_to(state, shards()); }

}  // namespace colossal::optim
