// 1D: an expand splits its outputs and a contract its inputs, so that nothing is exchanged between the two. Outside of
// the pairs tokens are replicated or, in the sequence form (Korthikanti et al. 2022, arXiv:2205.05198), sharded.
//
// Communication: replicated: an expand makes one all_reduce of dx in backward, a contract one of y in
//                forward, 2 (p-1)/p B*S*H elements each. A transformer layer thus makes 4 calls and sends 8 (p-1)/p
//                B*S*H. Sharded: an expand gathers x and scatters dx, a contract scatters y and gathers dy, (p-1)/p
//                B*S*H each. The sum is the same 8, or 10 if x is gathered again for dW.
#include <ATen/ATen.h>

#include "colossal/nn/direct_product.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/parallel/tensor/gathered_product.h"
#include "colossal/parallel/tensor/layout.h"
#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {
namespace {

class ColumnProduct final : public nn::DirectProduct {
 public:
  explicit ColumnProduct(comm::Group& group) : group_(group) {}
  at::Tensor local_y(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                     Saved* saved) const override {
    if (saved) *saved = {x, weight, out};
    if (bias.defined()) return ops::matmul_nt(x, weight, bias);
    at::Tensor y = ops::empty_rows(x.size(0), out, x.options());  // aligned rows, because a part of a vocabulary is
                                                                  // seldom even
    ops::matmul_nt_(y, x, weight, 0);
    return y;
  }
  std::function<void()> complete_dx(at::Tensor& dx) const override {
    return [work = group_.all_reduce(dx, comm::Reduce::Sum)]() mutable { work.wait(); };
  }

 private:
  comm::Group& group_;
};

class RowProduct final : public nn::DirectProduct {
 public:
  explicit RowProduct(comm::Group& group) : group_(group) {}
  bool sums_y() const override { return true; }
  at::Tensor complete_y(at::Tensor y, const at::Tensor& bias) const override {
    group_.all_reduce(y, comm::Reduce::Sum).wait();
    return bias.defined() ? y.add_(bias) : y;
  }
  at::Tensor sum_over_inputs(at::Tensor part) const override {
    group_.all_reduce(part, comm::Reduce::Sum).wait();
    return part;
  }

 private:
  comm::Group& group_;
};

}  // namespace

Layout Mode1d::layout(comm::Mesh& mesh, const TensorConfig& config) {
  comm::Group& group = mesh.group("tensor");
  Layout layout{.mesh = &mesh};
  layout.inside.columns = {"tensor"};
  layout.outside = outside(config);
  layout.expand.weight.out = layout.contract.weight.in = {"tensor"};
  if (config.sequence) {
    comm::Group& alone = mesh.group(std::vector<std::string>());
    layout.expand.product = gathered_product(group, alone, alone, config.keep_gathered);
    layout.contract.product = gathered_product(alone, alone, group, config.keep_gathered);
  } else {
    layout.expand.product = std::make_shared<ColumnProduct>(group);
    layout.contract.product = std::make_shared<RowProduct>(group);
  }
  layout.embedding = layout.expand.weight;
  return layout;
}

}  // namespace colossal::parallel
