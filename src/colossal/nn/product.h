// The three products of a linear layer. Only these differ between one process, the modes of tensor parallelism and the
// number formats. nn::linear is the linear layer with its autograd, for any Product:
//
//   const at::Tensor y = nn::linear(product, x, weight, bias, out, nullptr);  // calls product.forward()
//   y.sum().backward();                                                       // calls product.backward()
//
// A product that wraps another one to compute in another way (nn/fp8_product.h) is also a Product.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::nn {

struct Parameter;

/// The products y = x Wt + bias, dx = dy W and dW = dyt x of logical matrices. Each rank holds the blocks that its
/// layout assigns to it; the product communicates as its mode requires.
///
/// Shapes:  all are local and two-dimensional: x [T, in], weight as its ShardSpec stores it, y [T', out], one row per
///          token; bias [out] or undefined. T' differs from T if tokens of several ranks are gathered (T' = n T, rank
///          by rank) or scattered.
/// Memory:  rows of x, y and dy are dense, but there may be gaps between rows.
/// Sums:    if several ranks hold the same block of W and have other rows (2.5D), each computes dW from its own rows
///          only. The gradient is the sum over those ranks, which the caller computes.
/// Calls:   each is collective among the ranks of the mode's groups. backward() may run long after forward(), any
///          number of times, e.g. once for dx and once for dW.
class Product {
 public:
  /// Tensors that forward() keeps for backward().
  struct Saved {
    /// Operands that backward() reads: the blocks that forward() was given, or what the product made from them, such as
    /// gathered blocks or 8-bit quantized values. dW needs only x, dx needs only weight.
    at::Tensor x, weight;
    int64_t out = 0;  ///< number of columns of y, as forward() was given it
    /// Any other tensors that the product keeps, under its own numbering. The caller that stores a Saved passes it back
    /// unchanged, including undefined tensors.
    std::vector<at::Tensor> own{};
    /// True if the product made `x` from the block that forward() was given, and backward() accepts that block in place
    /// of `x`. A caller that can recompute the block then need not keep `x`.
    bool takes_given_x = false;
  };
  /// Result of backward().
  struct Gradients {
    at::Tensor x, weight;           ///< undefined unless wanted
    std::vector<at::Tensor> own{};  ///< gradients of parameters(), in their order; empty unless wanted
  };
  /// The gradients that backward() computes.
  struct Wanted {
    bool x = true, weight = true;
    /// If defined, dW is added to it in place and it is the result. Its dtype may be wider than that of x
    at::Tensor sum{};
    bool own = false;  ///< whether the gradients of parameters() are wanted
    /// Returns `dweight`, or `sum` after `dweight` was added to it.
    at::Tensor with(const at::Tensor& dweight) const;
  };
  virtual ~Product() = default;
  /// The product's own parameters; a wrapper appends its own to the parameters of the product inside. nn::linear makes
  /// their gradients in the same backward pass as the gradient of x. They outlive the product.
  virtual std::vector<Parameter*> parameters() const { return {}; }
  /// Returns false if the product works without gradients only. `saved` must then be null.
  virtual bool has_backward() const { return true; }
  /// Computes y. `out`: number of columns of y; a weight whose stored pieces were padded has more rows. `saved`: null
  /// if no backward pass will follow.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                             Saved* saved) const = 0;
  /// Computes the wanted gradients from dy and from what forward() saved.
  virtual Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const = 0;
  /// Returns the sum of `part` over the ranks that hold other inputs of the same outputs of the weight. `part` has
  /// values for rows of the block of the weight that forward() is given; it may be overwritten. Collective.
  virtual at::Tensor sum_over_inputs(at::Tensor part) const { return part; }
  /// Returns for each of parameters() the first output of this rank for which its dimension 0 has a row; -1 = its
  /// dimension 0 has no outputs. Outputs are counted before tensor::DimSplit::shards cut them.
  virtual std::vector<int64_t> first_outputs() const { return {}; }
  /// Returns false if forward() does not read the weight that it is given, because the product has another form of it.
  /// Callers then need not announce the read. `has_gradients`: whether `saved` will be given.
  virtual bool reads_weight([[maybe_unused]] bool has_gradients) const { return true; }
};

/// Returns the product of one process: all blocks are local and it does not communicate. The tensor-parallel products
/// are in parallel/tensor.
const Product& serial_product();

}  // namespace colossal::nn
