#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/ops/triangle.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/read_scope.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Elements of outer products at a time: products with so many are fast, and they remain in the nearer caches.
constexpr int64_t kOuterElements = int64_t{1} << 20;

/// Outer products of some i with all j, of one batch row.
class OuterSlices {
 public:
  OuterSlices(const at::Tensor& a, const at::Tensor& b)
      : rows_(a.size(1)), i_(a.size(2)), j_(b.size(2)), a_(a.size(3)), b_(b.size(3)) {
    const auto wide = wide_type(a);
    // [B, S, features]: matrices whose rows are those of the alignment
    left_ = a.to(wide).reshape({a.size(0), rows_, i_ * a_});
    right_ = b.to(wide).reshape({b.size(0), rows_, j_ * b_});
  }
  /// Calls body(batch row, first i, count) for slices that cover all i.
  template <class Body>
  void each(const Body& body) const {
    const bool is_small = left_.is_cpu() || left_.is_meta();
    const int64_t elements = (is_small ? 1 : 16) * kOuterElements;
    const int64_t most = std::max<int64_t>(elements / std::max<int64_t>(a_ * j_ * b_, 1), 1);
    for (int64_t batch = 0; batch < left_.size(0); ++batch)
      for (int64_t first = 0; first < i_; first += most) body(batch, first, std::min(most, i_ - first));
  }
  at::Tensor left(int64_t batch, int64_t first, int64_t count) const {
    return left_[batch].narrow(1, first * a_, count * a_);
  }
  at::Tensor right(int64_t batch) const { return right_[batch]; }
  /// Returns the outer products of a slice, [count * J, A * C].
  at::Tensor products(int64_t batch, int64_t first, int64_t count) const {
    const at::Tensor all = matmul_tn(left(batch, first, count), right(batch));  // [count A, J C]
    return all.view({count, a_, j_, b_}).transpose(1, 2).reshape({count * j_, a_ * b_});
  }
  /// Returns the same numbers in the order in which products() multiplies, [count A, J C].
  at::Tensor back(const at::Tensor& products, int64_t count) const {
    return products.view({count, j_, a_, b_}).transpose(1, 2).reshape({count * a_, j_ * b_});
  }

 private:
  int64_t rows_, i_, j_, a_, b_;
  at::Tensor left_, right_;
};

struct OuterProductMean : Function<OuterProductMean> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias, const at::Tensor& counts) {
    const at::NoGradGuard no_grad;
    const tensor::ReadScope read({weight, bias.value_or(at::Tensor())});
    const OuterSlices slices(a, b);
    const auto wide = wide_type(a);
    const at::Tensor y = at::empty({a.size(0), a.size(2), b.size(2), weight.size(0)}, a.options().requires_grad(false));
    const at::Tensor matrix = weight.to(wide), added = bias ? bias->to(wide) : at::Tensor();
    slices.each([&](int64_t batch, int64_t first, int64_t count) {
      at::Tensor part = matmul_nt(slices.products(batch, first, count), matrix, added);
      y[batch]
          .narrow(0, first, count)
          .copy_(part.view({count, b.size(2), -1}).div_(counts[batch].narrow(0, first, count).to(wide).unsqueeze(-1)));
    });
    if (!context) return y;
    context->save_for_backward({a, b, weight, counts});
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &weight = saved[2], &counts = saved[3];
    const tensor::ReadScope read({weight});
    const OuterSlices slices(a, b);
    const auto wide = wide_type(a);
    const auto plain = a.options().requires_grad(false).dtype(wide);
    const bool wants_weight = context->needs_input_grad(2), wants_bias = context->saved_data["bias"].toBool();
    const bool wants_inputs = context->needs_input_grad(0) || context->needs_input_grad(1);
    at::Tensor da = at::empty(a.sizes(), plain), db = at::zeros(b.sizes(), plain);
    at::Tensor dweight = at::zeros(wants_weight ? weight.sizes() : at::IntArrayRef({0}), plain);
    at::Tensor dbias = at::zeros({weight.size(0)}, plain);
    const at::Tensor matrix = weight.to(wide);
    slices.each([&](int64_t batch, int64_t first, int64_t count) {
      const at::Tensor dy = gradients[0][batch].narrow(0, first, count).to(wide) /
                            counts[batch].narrow(0, first, count).to(wide).unsqueeze(-1);
      const at::Tensor rows = dy.contiguous().view({-1, weight.size(0)});  // gradients have any strides
      if (wants_weight) matmul_tn(rows, slices.products(batch, first, count), dweight);
      if (wants_bias) dbias.add_(column_sums(rows));
      if (!wants_inputs) return;
      const at::Tensor outer = slices.back(matmul_nn(rows, matrix), count);
      da[batch]
          .narrow(1, first, count)
          .copy_(matmul_nt(slices.right(batch), outer).view({a.size(1), count, a.size(3)}));
      at::Tensor sum = db[batch].view({b.size(1), -1});
      matmul_nt_(sum, slices.left(batch, first, count), outer.t(), 1);
    });
    const auto given = [&](const at::Tensor& x, bool wanted) { return wanted ? x.to(a.scalar_type()) : at::Tensor(); };
    return {given(da, context->needs_input_grad(0)), given(db, context->needs_input_grad(1)),
            wants_weight ? dweight.to(weight.scalar_type()) : at::Tensor(),
            wants_bias ? dbias.to(weight.scalar_type()) : at::Tensor(), at::Tensor()};
  }
};

void check_outer(const at::Tensor& a, const at::Tensor& b, const at::Tensor& weight, const at::Tensor& bias,
                 const at::Tensor& counts) {
  require(a.dim() == 4 && b.dim() == 4 && a.size(0) == b.size(0) && a.size(1) == b.size(1) && weight.dim() == 2 &&
              weight.size(1) == a.size(3) * b.size(3) &&
              (!bias.defined() || bias.sizes() == at::IntArrayRef({weight.size(0)})) &&
              counts.sizes() == at::IntArrayRef({a.size(0), a.size(2), b.size(2)}),
          "outer product", "a [B,S,I,A], b [B,S,J,C], weight [O,A * C], bias [O] and counts [B,I,J] must fit: got ",
          a.sizes(), ", ", b.sizes(), ", ", weight.sizes(), ", ", bias.defined() ? bias.sizes() : at::IntArrayRef(),
          " and ", counts.sizes());
}

}  // namespace

at::Tensor outer_product_mean(const at::Tensor& a, const at::Tensor& b, const at::Tensor& weight,
                              const at::Tensor& bias, const at::Tensor& counts) {
  check_outer(a, b, weight, bias, counts);
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record(
        {"outer_product_mean", "bSiA,bSjC,OX,O,bij->bijO", {a, b, weight, bias, counts}, [](const auto& in) {
           return outer_product_mean(in[0], in[1], in[2], in[3], in[4]);
         }});
  return tensor::apply_function<OuterProductMean>(
      a, b, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, counts);
}

at::Tensor outer_product_mean_reference(const at::Tensor& a, const at::Tensor& b, const at::Tensor& weight,
                                        const at::Tensor& bias, const at::Tensor& counts) {
  check_outer(a, b, weight, bias, counts);
  const auto wide = wide_type(a);
  const at::Tensor outer = at::einsum("bsic,bsjd->bijcd", {a.to(wide), b.to(wide)}).flatten(3);
  const at::Tensor y = at::linear(outer, weight.to(wide), bias.defined() ? bias.to(wide) : at::Tensor());
  return (y / counts.to(wide).unsqueeze(-1)).to(a.scalar_type());
}

}  // namespace colossal::ops
