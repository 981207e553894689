// Activations of feed-forward blocks, forward and backward each in one pass, saving their inputs only; and the table of
// those that configs name.
//
//   const ops::Activation& chosen = ops::activation("gelu_new");
//   x = down->forward(up->forward(x).map(chosen.plain, step));        // up gives [..., F]
//   x = down->forward(gate_up->forward(x).map(chosen.gated, step));   // gate_up gives [..., 2 F]
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace colossal::ops {

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Shapes: any.
at::Tensor gelu(const at::Tensor& x);

/// x/2 (1 + erf(x / sqrt(2))), which the above approximates: BERT's and ViT's. Shapes: any.
at::Tensor exact_gelu(const at::Tensor& x);

/// silu(gate) * up, silu(x) = x / (1 + exp(-x)). Shapes: both [..., F] -> [..., F].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// Computes swiglu of one tensor [..., 2F], whose first half of columns is gate and second half up -> [..., F].
/// Errors: throws if the last dimension is odd.
at::Tensor swiglu(const at::Tensor& gate_up);

/// gelu(gate) * up of such a tensor, the tanh form (Gemma). Otherwise as swiglu.
at::Tensor geglu(const at::Tensor& gate_up);

/// An elementwise function by the name that transformers has for it.
struct Activation {
  const char* name;
  at::Tensor (*plain)(const at::Tensor&);  ///< any shape; keeps one tensor of it for backward
  /// plain(gate) * up of [..., 2F] -> [..., F]; keeps what it is given, nothing else, and makes the rest again in
  /// backward. Errors: as swiglu.
  at::Tensor (*gated)(const at::Tensor&);
};

/// The function called `name` in transformers' ACT2FN (its activations.py). Those that differ in rounding alone are
/// one: gelu_new, gelu_pytorch_tanh, gelu_python_tanh, gelu_fast, gelu_accurate. Errors ("activation"): none of that
/// name, with the names that there are; one with parameters of its own (prelu, xielu).
const Activation& activation(const std::string& name);

/// All of them.
const std::vector<Activation>& activations();

/// Derivative of gelu at x times `gradient`, no autograd.
at::Tensor gelu_backward(const at::Tensor& gradient, const at::Tensor& x);

/// By ATen operators with ATen's autograd: the references.
at::Tensor gelu_reference(const at::Tensor& x);
at::Tensor swiglu_reference(const at::Tensor& gate, const at::Tensor& up);

}  // namespace colossal::ops
