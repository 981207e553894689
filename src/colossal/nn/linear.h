// The linear layer with its autograd, for any Product; and the linear layers of the experts of a mixture, where each
// group of rows has a matrix of its own.
//
//   const at::Tensor y = nn::grouped_linear(product, rows, weight, {}, {3, 3, 8}, nullptr);   // rows 0-2, none, 3-7
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "colossal/nn/deferred_gradients.h"
#include "colossal/nn/grouped_product.h"
#include "colossal/nn/product.h"
#include "colossal/nn/recompute.h"

namespace colossal::nn {

/// Returns y [..., out] = x [..., in] Wt + bias, computed by `product` from this rank's blocks.
///
/// Shapes:   x [B, .., in] or [in], `bias` [out] or undefined -> [B', .., out]. Dimension 0 grows and shrinks with the
///           rows that the product gathers and scatters, in the order of the ranks.
/// Gradient: for every input that requires one. While `deferred` (may be null) is active, the weight's gradient becomes
///           a task in it.
/// `before`:  if given, the layer is applied to before(x). before(x) is not kept but computed again in backward (and
///            again for a deferred weight gradient). If no input requires a gradient, or without grad mode, no tensor
///            is kept and `product` is passed a null `saved`.
/// `own`:     the values of product.parameters(), in their order, or tensors computed from them that pass their
///            gradients on; empty = the values themselves. The product reads the values from its parameters.
/// Lifetime: `product` and `deferred` must outlive the graph and the tasks.
at::Tensor linear(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  int64_t out, DeferredGradients* deferred, const Unary& before = {}, std::vector<at::Tensor> own = {});

/// Computes the linear layer of one process: weight [out, in]. Errors: sizes that do not fit (the sizes of x are
/// checked only if `before` is empty).
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  DeferredGradients* deferred = nullptr, const Unary& before = {},
                  const Product& product = serial_product());

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
