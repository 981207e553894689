// Gradients of leaves added where they are kept, without a tensor of their own: a micro-batch then costs one pass over
// each gradient, not three.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// The kept gradient of `leaf`, to which a backward function may add its own and return none: autograd then adds
/// nothing, and runs the leaf's hooks all the same. Undefined where that cannot be: no leaf, no gradient yet, one of
/// another dtype or with gaps, or a graph of the backward pass is wanted.
///
/// For backward passes that accumulate, as ours do: torch::autograd::grad() of such a leaf would find its result in the
/// kept gradient, and gradient hooks of the tensor (not the one after accumulation) see nothing.
at::Tensor gradient_sum(const at::Tensor& leaf);

}  // namespace colossal::ops
