// The three products of the linear layers of experts: each group of rows has a matrix of its own (nn/linear.h).
//
//   const auto product = nn::grouped_product(parameters, stack);      // stack: [E, out, in], split over ranks
//   const at::Tensor y = product->forward(rows, stack.value, {}, ends, nullptr);
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "colossal/nn/parameter.h"
#include "colossal/nn/product.h"
#include "colossal/ops/products/grouped_matmul.h"

namespace colossal::nn {

/// The products y = x W[e]t + bias[e], dx = dy W[e] and dW[e] = dyt x for the rows of each expert e of this rank. They
/// do not communicate. This class multiplies plain values, all groups in one call.
class GroupedProduct {
 public:
  /// What forward() keeps for backward().
  struct Saved {
    at::Tensor x, weight;
    /// The saved tensors of each expert's product. x and weight are undefined if they are parts of those above
    std::vector<Product::Saved> of_expert{};
  };
  virtual ~GroupedProduct() = default;
  /// Computes y [R, out]. `saved`: null if no backward pass follows.
  virtual at::Tensor forward(const at::Tensor& x /*[R, in]*/, const at::Tensor& weight /*[E, out, in]*/,
                             const at::Tensor& bias /*[E, out] or undefined*/, const ops::GroupEnds& ends,
                             Saved* saved) const;
  /// Returns dx [R, in].
  virtual at::Tensor input_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends) const;
  /// Returns dW [E, out, in], zeros for experts without rows. If `sum` is defined, dW is added to it, and it is the
  /// result.
  virtual at::Tensor weight_gradient(const at::Tensor& dy, const Saved& saved, const ops::GroupEnds& ends,
                                     at::Tensor sum) const;
  /// Returns true if forward() gives a row of x the same bits beside any other rows (DirectProduct).
  virtual bool multiplies_by_row([[maybe_unused]] bool has_gradients) const { return false; }
  /// The product's own parameters, stacks with a matrix for each expert of this rank. nn::grouped_linear makes their
  /// gradients in the same backward pass as dx. They outlive the product.
  virtual std::vector<Parameter*> parameters() const { return {}; }
  /// Returns the gradients of parameters(), in their order, zeros for experts without rows. `saved.x` is defined.
  virtual std::vector<at::Tensor> own_gradients(const at::Tensor& dy, const Saved& saved,
                                                const ops::GroupEnds& ends) const;
};

/// The product of one expert in a wrapper that all experts of a stack share, such as an adapter whose matrices are
/// stacks, too. Wrappers of products (Parameters::Options::products) return it for each expert. It multiplies nothing
/// itself: grouped_product() puts the shared wrapper around the product of the stack.
class ExpertWrapper : public Product {
 public:
  /// Returns the product of the expert alone.
  virtual const std::shared_ptr<const Product>& inside() const = 0;
  /// Returns the wrapper around `product`, which multiplies the rows of all experts with the products inside.
  virtual std::shared_ptr<const GroupedProduct> around(std::shared_ptr<const GroupedProduct> product) const = 0;
  /// Errors ("adapter"): always, because another wrapper is around this one.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const final;
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const final;
};

/// Returns the product of a stack. If Parameters::Options::products has wrappers, each expert has a product of its own,
/// wrapped with a weight named "<stack>.<index>" (Parameter::stack): an fp8 layer thus has scales for each expert. All
/// ranks wrap all experts in the same order; Parameter::value is undefined for those of other ranks. A wrapper that is
/// an ExpertWrapper is put around the product of the whole stack.
/// Errors ("experts"): a wrapper that declares parameters for single experts; an ExpertWrapper of only some experts.
std::shared_ptr<const GroupedProduct> grouped_product(Parameters& parameters, const Parameter& stack);

}  // namespace colossal::nn
