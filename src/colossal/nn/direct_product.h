// Products that multiply the blocks which they are given, and of all that they compute send results alone. A wrapper
// that computes more or otherwise (nn/fp8_product.h, nn/low_rank.h) overrides the local parts. All that communicates
// is that of the product inside:
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

/// y, dx and dW of a rank are x Wt + bias, dy W and dyt x of its blocks, but for sums over ranks of y or of dx.
/// forward() is complete_y() of local_y(). backward() makes local_dx(), begins complete_dx(), makes local_gradients()
/// meanwhile, and waits.
class DirectProduct : public Product {
 public:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const final;
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override;

  // The local parts: no communication. Shapes and `saved` as in Product, of the blocks of this rank alone.

  /// x Wt, a new tensor [T, out], with `bias`, which is undefined if ranks sum.
  virtual at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                             Saved* saved) const;
  /// dy W, a new tensor [T, in].
  virtual at::Tensor local_dx(const at::Tensor& dy, const Saved& saved) const;
  /// Sets d.weight to dyt x if it is wanted, and appends the gradients of the product's own parameters to d.own if
  /// these are wanted.
  virtual void local_gradients(const at::Tensor& dy, const Saved& saved, const Wanted& wanted, Gradients& d) const;

  /// Returns true if y is a sum over ranks, after which the bias is added.
  virtual bool sums_y() const { return false; }
  /// y of this rank's x Wt, which it may overwrite; with the bias already where ranks do not sum. Collective.
  virtual at::Tensor complete_y(at::Tensor y, const at::Tensor& bias) const;
  /// Begins to make dx of this rank's dy W, in place; it is there behind a call of what is returned. Collective.
  virtual std::function<void()> complete_dx(at::Tensor& dx) const;
};

/// A direct product around another one: what it does not override is that of the product inside.
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
  bool has_backward() const override { return inner_->has_backward(); }

 protected:
  const DirectProduct& inner() const { return *inner_; }

 private:
  std::shared_ptr<const DirectProduct> inner_;
};

}  // namespace colossal::nn
