// Activation functions of feed-forward layers. Forward and backward take one pass each, and only the inputs are saved
// for backward. activation() finds the function that a model config names.
//
//   const ops::Activation& chosen = ops::activation("gelu_new");
//   x = down->forward(up->forward(x).map(chosen.plain, step));        // up gives [..., F]
//   x = down->forward(gate_up->forward(x).map(chosen.gated, step));   // gate_up gives [..., 2 F]
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace colossal::ops {

/// Computes x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the tanh form of GELU. Shapes: any.
at::Tensor gelu(const at::Tensor& x);

/// Computes x/2 (1 + erf(x / sqrt(2))), the exact GELU of BERT and ViT, which gelu() approximates. Shapes: any.
at::Tensor exact_gelu(const at::Tensor& x);

/// Computes silu(gate) * up with silu(x) = x / (1 + exp(-x)). Shapes: both [..., F] -> [..., F].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// Computes swiglu of one tensor [..., 2F] -> [..., F]. The first half of its last dimension is the gate, the second
/// half is up.
/// Errors: throws if the last dimension is odd.
at::Tensor swiglu(const at::Tensor& gate_up);

/// Computes sigmoid(gate) * up, the gate of AlphaFold's layers. Shapes: both [..., F] -> [..., F]. It saves only its
/// inputs for backward. Errors: throws for different shapes, dtypes or devices.
at::Tensor sigmoid_gate(const at::Tensor& gate, const at::Tensor& up);

/// Computes gelu(gate) * up with the tanh form of GELU (Gemma). The layout of `gate_up` and the errors are the same as
/// for swiglu(gate_up).
at::Tensor geglu(const at::Tensor& gate_up);

/// An activation function, under the name that transformers gives it.
struct Activation {
  const char* name;
  at::Tensor (*plain)(const at::Tensor&);  ///< elementwise, any shape; saves at most one such tensor for backward
  /// Computes plain(gate) * up for a tensor [..., 2F] -> [..., F]. It saves only its input for backward and computes
  /// all else again. Errors: as for swiglu(gate_up).
  at::Tensor (*gated)(const at::Tensor&);
};

/// Returns the function called `name` in transformers' ACT2FN (its activations.py). Names whose functions differ only
/// in rounding share one function: gelu_new, gelu_pytorch_tanh, gelu_python_tanh, gelu_fast, gelu_accurate. Errors
/// ("activation"): an unknown name, with the list of known names; a function with learned parameters (prelu, xielu).
const Activation& activation(const std::string& name);

/// Returns all functions that activation() knows.
const std::vector<Activation>& activations();

/// Returns true if on the CPU in fp32 and bf16 each element of the result of `plain`, or of `gated`, does not depend on
/// its place in the tensor. Vectorised operators of LibTorch may compute the last elements in another way than whole
/// vectors.
bool computes_by_element(const Activation& activation, bool gated);

/// Returns the derivative of gelu at x, times `gradient`. There is no autograd.
at::Tensor gelu_backward(const at::Tensor& gradient, const at::Tensor& x);

/// References: the same functions from ATen operators, with ATen's autograd.
at::Tensor gelu_reference(const at::Tensor& x);
at::Tensor swiglu_reference(const at::Tensor& gate, const at::Tensor& up);
at::Tensor sigmoid_gate_reference(const at::Tensor& gate, const at::Tensor& up);

}  // namespace colossal::ops
