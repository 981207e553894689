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

}  // namespace colossal::models
