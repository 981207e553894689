// Activation recomputation: memory for time. What lies between two kept activations is forgotten after forward and
// computed again in backward (Chen et al. 2016, arXiv:1604.06174).
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace colossal::nn {

/// What a training step forgets.
enum class Recompute {
  None,
  /// The activation inside each mlp; attention scores are never kept (Korthikanti et al. 2022, arXiv:2205.05198)
  Selective,
  Block,  ///< all but the input of each block
};

using Unary = std::function<at::Tensor(const at::Tensor&)>;

/// function(x) with autograd, keeping x alone. Backward computes `function` again and goes through it: gradients of x
/// and of the parameters it uses are those of function(x) bit by bit if the function gives the same result twice (our
/// dropout does: masks follow from the step).
/// An x without gradient, such as a frozen embedding gives: backward makes the gradients of parameters alone. If
/// `function` uses no trained parameter either, the result requires no gradient and nothing is kept.
/// Memory:        for such an x the activations of `function` exist during forward, too, and are freed when it returns.
/// Communication: that of `function`, once more in backward.
at::Tensor recomputed(const Unary& function, const at::Tensor& x);

/// A function of several tensors, which returns several.
using Nary = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// function(inputs) with autograd, keeping the inputs alone, as recomputed(function, x) does. Inputs without a
/// gradient, such as integers, are kept too. An output to which backward brings no gradient counts as zeros.
std::vector<at::Tensor> recomputed(const Nary& function, const std::vector<at::Tensor>& inputs);

}  // namespace colossal::nn
