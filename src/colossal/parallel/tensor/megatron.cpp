// 1D: features split, tokens replicated. An expand splits its outputs, a contract its inputs, so that nothing is
// exchanged between the two.
//
// Communication: expand: one all_reduce of dx in backward; contract: one of y in forward: 2 (p-1)/p * T * H elements
//                each, 8 (p-1)/p * B*S*H and 4 calls for a transformer layer.
#include <ATen/ATen.h>

#include "colossal/ops/matmul.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {
namespace {

class ColumnProduct final : public nn::Product {
 public:
  explicit ColumnProduct(comm::Group& group) : group_(group) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    if (saved) *saved = {x, weight, out};
    if (bias.defined()) return ops::matmul_nt(x, weight, bias);
    at::Tensor y = ops::empty_rows(x.size(0), out, x.options());  // a part of a vocabulary is seldom even
    ops::matmul_nt_(y, x, weight, 0);
    return y;
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    Gradients d;
    comm::Work sum;
    if (wanted.x) {
      d.x = ops::matmul_nn(dy, saved.weight);
      sum = group_.all_reduce(d.x, comm::Reduce::Sum);  // while dW is computed
    }
    if (wanted.weight) d.weight = ops::matmul_tn(dy, saved.x, wanted.sum);
    sum.wait();
    return d;
  }

 private:
  comm::Group& group_;
};

class RowProduct final : public nn::Product {
 public:
  explicit RowProduct(comm::Group& group) : group_(group) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    if (saved) *saved = {x, weight, out};
    at::Tensor y = ops::matmul_nt(x, weight);
    group_.all_reduce(y, comm::Reduce::Sum).wait();
    return bias.defined() ? y.add_(bias) : y;
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, const Wanted& wanted) const override {
    return nn::serial_product().backward(dy, saved, wanted);
  }

 private:
  comm::Group& group_;
};

}  // namespace

Layout Mode1d::layout(comm::Mesh& mesh, const TensorConfig&) {
  comm::Group& group = mesh.group("tensor");
  Layout layout{.mesh = &mesh};
  layout.inside.columns = {"tensor"};
  layout.expand = {{.out = {"tensor"}}, std::make_shared<ColumnProduct>(group)};
  layout.contract = {{.in = {"tensor"}}, std::make_shared<RowProduct>(group)};
  layout.embedding = layout.expand.weight;
  return layout;
}

}  // namespace colossal::parallel
