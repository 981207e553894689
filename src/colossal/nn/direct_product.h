// Products that multiply the blocks which they are given, and of all that they compute send results alone. Who
// multiplies in another way than ops/matmul (nn/fp8_product.h) makes the matrix products and leaves the rest to them:
//
//   at::Tensor y = multiply(x, weight, direct.sums_y() ? at::Tensor() : bias);
//   y = direct.complete_y(y, bias);
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "colossal/nn/product.h"

namespace colossal::nn {

/// y, dx and dW of a rank are x Wt + bias, dy W and dyt x of its blocks, but for sums over ranks of y or of dx.
class DirectProduct : public Product {
 public:
  /// Whether y is a sum over ranks, behind which the bias is added.
  virtual bool sums_y() const { return false; }
  /// y of this rank's x Wt, which it may overwrite; with the bias already where ranks do not sum. Collective.
  virtual at::Tensor complete_y(at::Tensor y, const at::Tensor& bias) const;
  /// Begins to make dx of this rank's dy W, in place; it is there behind a call of what is returned. Collective.
  virtual std::function<void()> complete_dx(at::Tensor& dx) const;
};

}  // namespace colossal::nn
