// Elementwise functions that save only their input for backward. Backward computes the intermediate results again.
//
//   at::Tensor formula(const at::Tensor& x) { return x * at::sigmoid(1.702 * x); }  // would keep x twice and a sigmoid
//   const at::Tensor y = made_again<formula>(x);
#pragma once
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"

namespace colossal::ops {

using PlainFunction = at::Tensor (*)(const at::Tensor&);

/// Computes function(x) and, from the gradient of that, the gradient of x.
template <PlainFunction function>
struct Again {
  explicit Again(const at::Tensor& given) : x(given.detach().requires_grad_()) {
    const at::AutoGradMode on(true);
    y = function(x);
  }
  at::Tensor gradient(const at::Tensor& dy) const { return torch::autograd::grad({y}, {x}, {dy})[0]; }
  at::Tensor x, y;
};

template <PlainFunction function>
struct MadeAgain : torch::autograd::Function<MadeAgain<function>> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return function(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {Again<function>(context->get_saved_variables()[0]).gradient(gradients[0])};
  }
};

/// Computes function(gate) * up for [..., 2F]; gate is the first half. Backward writes the gradients of both halves to
/// one tensor.
template <PlainFunction function>
struct GatedAgain : torch::autograd::Function<GatedAgain<function>> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& gate_up) {
    context->save_for_backward({gate_up});
    const auto halves = gate_up.chunk(2, -1);
    return function(halves[0]) * halves[1];
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor gate_up = context->get_saved_variables()[0], gradient = at::empty_like(gate_up);
    const auto halves = gate_up.chunk(2, -1), out = gradient.chunk(2, -1);
    const Again<function> gate(halves[0]);
    out[0].copy_(gate.gradient(gradients[0] * halves[1]));
    out[1].copy_(gate.y.detach()).mul_(gradients[0]);
    return {gradient};
  }
};

/// Returns function(x); saves x only.
template <PlainFunction function>
at::Tensor made_again(const at::Tensor& x) {
  return MadeAgain<function>::apply(x);
}

/// Returns function(gate) * up; saves gate_up only. Errors: the last dimension is odd.
template <PlainFunction function>
at::Tensor gated_by(const at::Tensor& gate_up) {
  require(gate_up.dim() > 0 && gate_up.size(-1) % 2 == 0, "activation", "gate and up must be equally wide: got ",
          gate_up.sizes());
  return GatedAgain<function>::apply(gate_up);
}

}  // namespace colossal::ops
