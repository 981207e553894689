// Activations of feed-forward blocks, forward and backward each in one pass, saving their inputs only.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Shapes: any.
at::Tensor gelu(const at::Tensor& x);

/// x/2 (1 + erf(x / sqrt(2))), which the above approximates: BERT's and ViT's. Shapes: any.
at::Tensor exact_gelu(const at::Tensor& x);

/// silu(gate) * up, silu(x) = x / (1 + exp(-x)). Shapes: both [..., F] -> [..., F].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// The same of one tensor [..., 2F] whose first half of columns is gate and second half up -> [..., F].
/// Errors: throws if the last dimension is odd.
at::Tensor swiglu(const at::Tensor& gate_up);

/// Derivative of gelu at x times `gradient`, no autograd.
at::Tensor gelu_backward(const at::Tensor& gradient, const at::Tensor& x);

/// By ATen operators with ATen's autograd: the references.
at::Tensor gelu_reference(const at::Tensor& x);
at::Tensor swiglu_reference(const at::Tensor& gate, const at::Tensor& up);

}  // namespace colossal::ops
