// The low-rank adapter of a convolution, as nn::with_low_rank() makes it for a weight [out, in, rows, columns]: y += s
// B (A * x), where A [r, in, rows, columns] is a convolution that passes over the pictures as the layer's kernel does,
// and B [out, r] multiplies each pixel of its result. nn::convolved() computes both.
//
//   const auto product = std::make_shared<const ConvolutionLowRank>(direct, a, b, 0.5, 0);
//   y = nn::convolved(*product, x, weight, bias, out, pictures);         // with gradients of x, A and B
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/nn/direct_product.h"
#include "colossal/nn/parameter.h"

namespace colossal::nn {

class ConvolutionLowRank final : public DirectWrapper {
 public:
  /// `first_output`: Product::first_outputs() of B.
  ConvolutionLowRank(std::shared_ptr<const DirectProduct> inner, Parameter& a, Parameter& b, double scale,
                     int64_t first_output)
      : DirectWrapper(std::move(inner)), a_(a), b_(b), scale_(scale), first_output_(first_output) {}

  const at::Tensor& a() const { return a_.value; }
  const at::Tensor& b() const { return b_.value; }
  double scale() const { return scale_; }

  std::vector<Parameter*> parameters() const override {
    std::vector<Parameter*> all = inner().parameters();
    all.insert(all.end(), {&a_, &b_});
    return all;
  }
  std::vector<int64_t> first_outputs() const override {
    std::vector<int64_t> all = inner().first_outputs();
    all.insert(all.end(), {-1, first_output_});
    return all;
  }
  /// Errors ("adapter"): always, because one tap of the kernel has no adapter of its own.
  at::Tensor local_y(const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, Saved*) const override {
    throw Error("adapter", concat("the adapter of the convolution ", a_.name,
                                  " must be computed with its pictures: got a product of single taps"));
  }

 private:
  Parameter &a_, &b_;
  double scale_;
  int64_t first_output_;
};

}  // namespace colossal::nn
