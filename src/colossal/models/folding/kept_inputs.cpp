#include "colossal/models/folding/kept_inputs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace colossal::models {

void copy_kept_inputs(std::initializer_list<at::Tensor*> states) {
  if (at::GradMode::is_enabled()) return;
  const auto has_gradient = [](const at::Tensor* state) { return state->requires_grad(); };
  if (std::none_of(states.begin(), states.end(), has_gradient)) return;
  for (at::Tensor* state : states) *state = state->clone();
}

void add_update(at::Tensor& x, const at::Tensor& update) {
  if (at::GradMode::is_enabled())
    x = x + update;
  else
    x.add_(update);
}

void add_triangle(at::Tensor& z, const nn::TriangleMultiplication& triangle, const nn::SharedDropout& dropout,
                  const at::Tensor& mask, const nn::ForwardContext& step) {
  // The forward pass of a recomputed block has no gradients, and yet drops.
  if (at::GradMode::is_enabled() || dropout.drops(step))
    add_update(z, dropout.forward(triangle.forward(z, mask), step, z.size(2)));
  else
    triangle.add_to(z, mask);
}

}  // namespace colossal::models
