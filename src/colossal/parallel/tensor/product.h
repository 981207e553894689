// The three products of a linear layer over the blocks that ranks hold. They are all in which the modes of tensor parallelism differ.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::parallel {

/// y = x Wt, dx = dy W and dW = dyt x of logical matrices cut as a Layout says, with the communication of its mode.
///
/// Shapes:  all local and two-dimensional: x [T, in], weight as its ShardSpec stores it, y [T', out], rows of tokens.
/// Copies:  where several ranks hold the same block of W and see other rows (2.5D), dW is this rank's share of the sum.
/// Thread:  collective among the ranks of the mode's groups, each call.
class Product {
 public:
  struct Saved {
    at::Tensor x, weight;  ///< what backward() wants: the blocks themselves, or gathered ones
    int64_t out = 0;
  };
  struct Gradients {
    at::Tensor x, weight;  ///< undefined unless wanted
  };
  virtual ~Product() = default;
  /// `out`: columns of y; a weight whose stored pieces were padded has more. `saved` may be null.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, int64_t out, Saved* saved) const = 0;
  virtual Gradients backward(const at::Tensor& dy, const Saved& saved, bool want_x, bool want_weight) const = 0;
};

/// y [..., out] = x [..., in] Wt + bias with autograd. `bias` [out] or undefined. T = product of the leading sizes, the same before and after.
at::Tensor linear(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out);

}  // namespace colossal::parallel
