// Accumulation of gradients directly into a leaf's .grad, without a temporary tensor. A micro-batch then costs one pass
// over each gradient, not three.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Returns the accumulated gradient of `leaf`. A backward function may add its gradient to it and return none; autograd
/// then adds nothing, but still runs the leaf's hooks. Returns an undefined tensor if this is not possible: `leaf` is
/// no leaf, has no gradient yet or one with another dtype or gaps, or a graph of the backward pass is recorded.
///
/// It is for backward passes that accumulate, as ours do. torch::autograd::grad() of such a leaf would find its result
/// in .grad. Gradient hooks of the tensor see no gradient; hooks after accumulation work.
at::Tensor gradient_sum(const at::Tensor& leaf);

}  // namespace colossal::ops
