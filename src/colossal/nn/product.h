// The three products of a linear layer. They are all in which one process and the modes of tensor parallelism differ.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::nn {

/// y = x Wt + bias, dx = dy W and dW = dyt x of logical matrices, each rank holding the blocks that its layout says,
/// with the communication of its mode.
///
/// Shapes:  all local and two-dimensional: x [T, in], weight as its ShardSpec stores it, y [T', out], rows of tokens;
///          bias [out] or undefined.
/// Memory:  rows of x, y and dy are dense, but need not follow one another at once.
/// Copies:  where several ranks hold the same block of W and see other rows (2.5D), dW is this rank's share of the sum.
/// Thread:  collective among the ranks of the mode's groups, each call.
class Product {
 public:
  struct Saved {
    /// What backward() wants: the blocks themselves, or gathered ones. dW needs x alone, dx weight alone
    at::Tensor x, weight;
    int64_t out = 0;
    /// Of a product that keeps fewer bits (nn/fp8_product.h), undefined elsewhere. Where there is one of x, backward()
    /// takes the x that forward() was given, too.
    at::Tensor x_scale{}, weight_scale{};
  };
  struct Gradients {
    at::Tensor x, weight;  ///< undefined unless wanted
  };
  struct Wanted {
    bool x = true, weight = true;
    at::Tensor sum{};  ///< if defined, dW is added to it, and it is the result; may be wider than x
    at::Tensor with(const at::Tensor& dweight) const;
  };
  virtual ~Product() = default;
  /// `out`: columns of y; a weight whose stored pieces were padded has more. `saved`: null where nothing will go back.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                             Saved* saved) const = 0;
  virtual Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const = 0;
};

/// Of one process: everything is here, nothing is communicated. Tensor-parallel products are in parallel/tensor.
const Product& serial_product();

}  // namespace colossal::nn
