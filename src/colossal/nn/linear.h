// The linear layer with its autograd, over any Product.
#pragma once
#include <vector>

#include "colossal/nn/deferred_gradients.h"
#include "colossal/nn/product.h"
#include "colossal/nn/recompute.h"

namespace colossal::nn {

/// y [..., out] = x [..., in] Wt + bias, by the blocks of `product`.
///
/// Shapes:   x [B, .., in] or [in], `bias` [out] or undefined -> [B', .., out]: dimension 0 grows and shrinks with
///           the rows that the product gathers and scatters, which go rank by rank.
/// Gradient: of whichever inputs require it. While `deferred` (may be null) is active, that of the weight becomes a
///           task there.
/// `before`:  if given, the layer is of before(x), which is not kept but computed again in backward (and again for a
///            deferred weight gradient). If no input requires a gradient, or without grad mode, nothing is kept, and
///            `product` is told so.
/// `own`:     the values of product.parameters(), in their order, or what was made of them, through which their
///            gradients go on; empty: the values themselves. The product reads the values from its parameters.
/// Lifetime: `product` and `deferred` outlive the graph and the tasks.
at::Tensor linear(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  int64_t out, DeferredGradients* deferred, const Unary& before = {}, std::vector<at::Tensor> own = {});

/// Computes the linear layer in one process: weight [out, in]. Errors: throws if the sizes do not fit (those of x only
/// if `before` is empty).
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  DeferredGradients* deferred = nullptr, const Unary& before = {},
                  const Product& product = serial_product());

}  // namespace colossal::nn
