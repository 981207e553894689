// 1D: features split, tokens replicated. An expand splits its outputs, a contract its inputs, so that nothing is exchanged between the two.
//
// Communication: expand: one all_reduce of dx in backward; contract: one of y in forward: 2 (p-1)/p * T * H elements each, 8 (p-1)/p * B*S*H and 4 calls
// for a transformer layer.
#include <ATen/ATen.h>

#include "colossal/ops/matmul.h"
#include "colossal/parallel/tensor/layout.h"

namespace colossal::parallel {
namespace {

class ColumnProduct final : public Product {
 public:
  explicit ColumnProduct(comm::Group& group) : group_(group) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, int64_t out, Saved* saved) const override {
    if (saved) *saved = {x, weight, out};
    return ops::matmul_nt(x, weight);
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, bool want_x, bool want_weight) const override {
    Gradients d;
    comm::Work sum;
    if (want_x) {
      d.x = ops::matmul_nn(dy, saved.weight);
      sum = group_.all_reduce(d.x, comm::Reduce::Sum);  // while dW is computed
    }
    if (want_weight) d.weight = ops::matmul_tn(dy, saved.x);
    sum.wait();
    return d;
  }

 private:
  comm::Group& group_;
};

class RowProduct final : public Product {
 public:
  explicit RowProduct(comm::Group& group) : group_(group) {}
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, int64_t out, Saved* saved) const override {
    if (saved) *saved = {x, weight, out};
    at::Tensor y = ops::matmul_nt(x, weight);
    group_.all_reduce(y, comm::Reduce::Sum).wait();
    return y;
  }
  Gradients backward(const at::Tensor& dy, const Saved& saved, bool want_x, bool want_weight) const override {
    return {want_x ? ops::matmul_nn(dy, saved.weight) : at::Tensor(), want_weight ? ops::matmul_tn(dy, saved.x) : at::Tensor()};
  }

 private:
  comm::Group& group_;
};

}  // namespace

Layout layout_1d(comm::Mesh& mesh) {
  comm::Group& group = mesh.group("tensor");
  Layout layout{.mode = "1d", .mesh = &mesh};
  layout.inside.columns = {"tensor"};
  layout.expand = {{.out = {"tensor"}}, std::make_shared<ColumnProduct>(group)};
  layout.contract = {{.in = {"tensor"}}, std::make_shared<RowProduct>(group)};
  layout.embedding = layout.expand.weight;
  return layout;
}

}  // namespace colossal::parallel
