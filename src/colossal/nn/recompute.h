// Activation recomputation, which trades time for memory. Activations between two kept ones are freed after forward and
// computed again in backward (Chen et al. 2016, arXiv:1604.06174).
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace colossal::nn {

/// The activations that a training step frees after forward and computes again in backward.
enum class Recompute {
  None,
  /// The activation inside each mlp; attention scores are never kept (Korthikanti et al. 2022, arXiv:2205.05198)
  Selective,
  Block,  ///< all activations except the input of each block
};

using Unary = std::function<at::Tensor(const at::Tensor&)>;

/// Returns function(x) with autograd, keeping only x. Backward runs `function` again and goes through it. The gradients
/// of x and of the parameters in use equal the gradients of function(x) bit by bit, if the function gives the same
/// result twice. Dropout does, because its masks follow from the step.
///
/// If x requires no gradient, as after a frozen embedding, backward makes only the gradients of parameters. If
/// `function` uses no trained parameter either, the result requires no gradient and no tensor is kept.
/// Memory:        for an x without a gradient the activations of `function` also exist during forward, and are freed
///                when it returns.
/// Communication: `function` communicates once more in backward.
at::Tensor recomputed(const Unary& function, const at::Tensor& x);

/// A function of several tensors that returns several.
using Nary = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// Returns function(inputs) with autograd, keeping only the inputs, like recomputed(function, x). Inputs without a
/// gradient, such as integers, are kept too. An output that receives no gradient in backward counts as one with a
/// gradient of zeros.
std::vector<at::Tensor> recomputed(const Nary& function, const std::vector<at::Tensor>& inputs);

}  // namespace colossal::nn
