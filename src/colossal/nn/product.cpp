#include "colossal/nn/product.h"

#include <ATen/ATen.h>

#include "colossal/nn/direct_product.h"
#include "colossal/ops/products/matmul.h"

namespace colossal::nn {
namespace {

class SerialProduct final : public DirectProduct {};

}  // namespace

at::Tensor DirectProduct::forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                                  Saved* saved) const {
  return complete_y(local_y(x, weight, sums_y() ? at::Tensor() : bias, out, saved), bias);
}

Product::Gradients DirectProduct::backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const {
  Gradients d;
  std::function<void()> wait;
  if (wanted.x) {
    d.x = local_dx(dy, saved);
    wait = complete_dx(d.x);  // communicates while the other gradients are computed
  }
  local_gradients(dy, saved, wanted, d);
  if (wait) wait();
  return d;
}

at::Tensor DirectProduct::local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                                  Saved* saved) const {
  if (saved) *saved = {x, weight, out};
  return ops::matmul_nt(x, weight, bias);
}

at::Tensor DirectProduct::local_dx(const at::Tensor& dy, const Saved& saved) const {
  return ops::matmul_nn(dy, saved.weight);
}

void DirectProduct::local_gradients(const at::Tensor& dy, const Saved& saved, const Wanted& wanted,
                                    Gradients& d) const {
  if (wanted.weight) d.weight = ops::matmul_tn(dy, saved.x, wanted.sum);
}

at::Tensor DirectProduct::complete_y(at::Tensor y, const at::Tensor&) const { return y; }

std::function<void()> DirectProduct::complete_dx(at::Tensor&) const {
  return [] {};
}

at::Tensor DirectProduct::local_rows(const at::Tensor& weight, int64_t first, int64_t count) const {
  return weight.detach().narrow(0, first, count);
}

at::Tensor Product::Wanted::with(const at::Tensor& dweight) const {
  return sum.defined() ? sum.add_(dweight) : dweight;
}

const Product& serial_product() {
  static const SerialProduct product;
  return product;
}

}  // namespace colossal::nn
