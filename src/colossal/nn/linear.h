// The linear layer with its autograd, for any Product.
#pragma once
#include <vector>

#include "colossal/nn/deferred_gradients.h"
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

}  // namespace colossal::nn
