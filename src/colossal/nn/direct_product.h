// Products that multiply only the blocks that this rank holds, and communicate only results. A wrapper that computes
// more or in another way (nn/fp8_product.h, nn/low_rank.h) overrides the local parts. The product inside does all of
// the communication:
//
//   class Watched final : public nn::DirectWrapper {
//    public:
//     using DirectWrapper::DirectWrapper;
//     at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
//                        Saved* saved) const override {
//       look_at(x);
//       return inner().local_y(x, weight, bias, out, saved);
//     }
//   };
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "colossal/nn/product.h"

namespace colossal::nn {

/// A product whose y, dx and dW on a rank are x Wt + bias, dy W and dyt x of the rank's blocks, except for sums of y or
/// dx over ranks. forward() is complete_y() of local_y(). backward() makes local_dx(), begins complete_dx(), computes
/// local_gradients() during it, and waits.
class DirectProduct : public Product {
 public:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const final;
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override;

  // The local parts do not communicate. Shapes and `saved` are as in Product, for the blocks of this rank only.

  /// Returns x Wt, a new tensor [T, out], plus `bias`, which is undefined if ranks sum.
  virtual at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                             Saved* saved) const;
  /// Returns dy W, a new tensor [T, in].
  virtual at::Tensor local_dx(const at::Tensor& dy, const Saved& saved) const;
  /// Sets d.weight to dyt x if it is wanted. Appends the gradients of the product's own parameters to d.own if they are
  /// wanted.
  virtual void local_gradients(const at::Tensor& dy, const Saved& saved, const Wanted& wanted, Gradients& d) const;

  /// Returns true if y is a sum over ranks. The bias is then added after the sum.
  virtual bool sums_y() const { return false; }
  /// Makes y from this rank's x Wt, which it may overwrite; x Wt already includes the bias if ranks do not sum.
  /// Collective.
  virtual at::Tensor complete_y(at::Tensor y, const at::Tensor& bias) const;
  /// Begins to turn this rank's dy W into dx, in place. `dx` is ready after the caller has called the returned
  /// function. Collective.
  virtual std::function<void()> complete_dx(at::Tensor& dx) const;
  /// Returns true if local_y() gives a row of x the same bits beside any other rows. `has_gradients`: whether `saved`
  /// will be given. Wrappers then do so with their own products (nn/canonical.h).
  virtual bool multiplies_by_row([[maybe_unused]] bool has_gradients) const { return false; }
  /// Returns the values of rows [first, first + count) of this rank's block of the weight, [count, in] in the dtype of
  /// `weight`: a view of it, or what its codes stand for. Call it for a few rows at a time.
  virtual at::Tensor local_rows(const at::Tensor& weight, int64_t first, int64_t count) const;
};

/// A direct product around another one. Functions that a subclass does not override are passed to the product inside.
class DirectWrapper : public DirectProduct {
 public:
  explicit DirectWrapper(std::shared_ptr<const DirectProduct> inner) : inner_(std::move(inner)) {}
  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    return inner_->local_y(x, weight, bias, out, saved);
  }
  at::Tensor local_dx(const at::Tensor& dy, const Saved& saved) const override { return inner_->local_dx(dy, saved); }
  void local_gradients(const at::Tensor& dy, const Saved& saved, const Wanted& wanted, Gradients& d) const override {
    inner_->local_gradients(dy, saved, wanted, d);
  }
  bool sums_y() const final { return inner_->sums_y(); }
  at::Tensor complete_y(at::Tensor y, const at::Tensor& bias) const final {
    return inner_->complete_y(std::move(y), bias);
  }
  std::function<void()> complete_dx(at::Tensor& dx) const final { return inner_->complete_dx(dx); }
  std::vector<Parameter*> parameters() const override { return inner_->parameters(); }
  std::vector<int64_t> first_outputs() const override { return inner_->first_outputs(); }
  at::Tensor sum_over_inputs(at::Tensor part) const final { return inner_->sum_over_inputs(std::move(part)); }
  bool has_backward() const override { return inner_->has_backward(); }
  bool reads_weight(bool has_gradients) const override { return inner_->reads_weight(has_gradients); }
  bool multiplies_by_row(bool has_gradients) const override { return inner_->multiplies_by_row(has_gradients); }
  at::Tensor local_rows(const at::Tensor& weight, int64_t first, int64_t count) const override {
    return inner_->local_rows(weight, first, count);
  }

 protected:
  const DirectProduct& inner() const { return *inner_; }

 private:
  std::shared_ptr<const DirectProduct> inner_;
};

}  // namespace colossal::nn
