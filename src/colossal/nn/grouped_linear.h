// The linear layers of the experts of a mixture, with autograd: each group of rows has a matrix of its own.
//
//   const at::Tensor y = nn::grouped_linear(product, rows, weight, {}, {3, 3, 8}, nullptr);   // rows 0-2, none, 3-7
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/nn/deferred_gradients.h"
#include "colossal/nn/grouped_product.h"
#include "colossal/nn/recompute.h"

namespace colossal::nn {

/// Returns y [R, out], whose rows [ends[e-1], ends[e]) are x Wt + bias with the matrix and bias of expert e.
///
/// Shapes:   x [R, in], weight [E, out, in], bias [E, out] or undefined.
/// Gradient: for every input that requires one; the gradient of a weight always has all experts, zeros for those
///           without rows. So the order in which gradients are complete does not depend on routing. While `deferred`
///           (may be null) is active, the weight's gradient becomes a task in it.
/// `before`:  if given, the layer is applied to before(x), which is computed again in backward, as in nn::linear.
/// Lifetime:  `product` and `deferred` must outlive the graph and the tasks.
at::Tensor grouped_linear(const GroupedProduct& product, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias, const ops::GroupEnds& ends, DeferredGradients* deferred,
                          const Unary& before = {});

}  // namespace colossal::nn
