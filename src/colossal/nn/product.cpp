#include "colossal/nn/product.h"

#include <ATen/ATen.h>

#include "colossal/nn/direct_product.h"
#include "colossal/ops/matmul.h"

namespace colossal::nn {
namespace {

class SerialProduct final : public DirectProduct {
 public:
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    if (saved) *saved = {x, weight, out};
    return ops::matmul_nt(x, weight, bias);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return {wanted.x ? ops::matmul_nn(dy, saved.weight) : at::Tensor(),
            wanted.weight ? ops::matmul_tn(dy, saved.x, wanted.sum) : at::Tensor()};
  }
};

}  // namespace

at::Tensor DirectProduct::complete_y(at::Tensor y, const at::Tensor&) const { return y; }

std::function<void()> DirectProduct::complete_dx(at::Tensor&) const {
  return [] {};
}

at::Tensor Product::Wanted::with(const at::Tensor& dweight) const {
  return sum.defined() ? sum.add_(dweight) : dweight;
}

const Product& serial_product() {
  static const SerialProduct product;
  return product;
}

}  // namespace colossal::nn
