// The three products of a linear layer. In these alone one process, the modes of tensor parallelism and number formats
// differ; nn::linear is the layer with its autograd over any of them:
//
//   const at::Tensor y = nn::linear(product, x, weight, bias, out, nullptr);  // calls product.forward()
//   y.sum().backward();                                                       // calls product.backward()
//
// A product that computes in another way around a given one (nn/fp8_product.h) is a Product, too.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::nn {

struct Parameter;

/// y = x Wt + bias, dx = dy W and dW = dyt x of logical matrices, each rank holding the blocks that its layout says,
/// with the communication of its mode.
///
/// Shapes:  all local and two-dimensional: x [T, in], weight as its ShardSpec stores it, y [T', out], a row a token;
///          bias [out] or undefined. T' is another number than T where tokens of several ranks are gathered (T' = n T,
///          rank by rank) or dealt out.
/// Memory:  rows of x, y and dy are dense, but need not follow one another at once.
/// Sums:    where several ranks hold the same block of W and see other rows (2.5D), the dW of each is of its own rows
///          alone: the gradient is the sum over those ranks, which the caller takes.
/// Calls:   each is collective among the ranks of the mode's groups. backward() may come long after forward(), any
///          number of times, once for dx and once for dW.
class Product {
 public:
  struct Saved {
    /// What backward() wants of the operands: the blocks that forward() was given, or what the product made of them,
    /// such as gathered blocks or codes of 8 bits. dW needs x alone, dx needs weight alone.
    at::Tensor x, weight;
    int64_t out = 0;
    /// Whatever else the product keeps, under its own numbering; whoever carries a Saved hands it back as it is, with
    /// the tensors that are undefined.
    std::vector<at::Tensor> own{};
    /// In place of `x`, where that is not the block itself, backward() also takes the block that forward() was given:
    /// who can compute that again need not keep `x`.
    bool takes_given_x = false;
  };
  struct Gradients {
    at::Tensor x, weight;           ///< undefined unless wanted
    std::vector<at::Tensor> own{};  ///< of parameters(), in their order; empty unless wanted
  };
  struct Wanted {
    bool x = true, weight = true;
    at::Tensor sum{};  ///< if defined, dW is added to it, and it is the result; may be wider than x
    bool own = false;  ///< the gradients of parameters()
    at::Tensor with(const at::Tensor& dweight) const;
  };
  virtual ~Product() = default;
  /// The parameters that a wrapper has of its own, after those of the product inside. nn::linear makes their gradients
  /// in the same backward pass as that of x. They outlive the product.
  virtual std::vector<Parameter*> parameters() const { return {}; }
  /// Returns false if the product works without gradients only: then `saved` must be null.
  virtual bool has_backward() const { return true; }
  /// `out`: columns of y; a weight whose stored pieces were padded has more. `saved`: null where nothing will go back.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                             Saved* saved) const = 0;
  virtual Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const = 0;
};

/// Returns the product of one process: everything is local, nothing is communicated. Tensor-parallel products are in
/// parallel/tensor.
const Product& serial_product();

}  // namespace colossal::nn
