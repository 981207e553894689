#include "colossal/parallel/tensor/product.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/ops/matmul.h"

namespace colossal::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

at::Tensor with_leading_sizes_of(const at::Tensor& x, const at::Tensor& rows) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = rows.size(-1);
  return rows.view(sizes);
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            int64_t product, int64_t out) {
    Product::Saved saved;
    at::Tensor y = reinterpret_cast<const Product*>(product)->forward(rows_of(x), weight, out, &saved);
    if (bias) y.add_(*bias);
    context->save_for_backward({saved.x, saved.weight});
    context->saved_data["product"] = product;
    context->saved_data["out"] = out;
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    return with_leading_sizes_of(x, y);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto& product = *reinterpret_cast<const Product*>(context->saved_data["product"].toInt());
    const at::Tensor dy = rows_of(gradients[0]);
    const auto d = product.backward(dy, {saved[0], saved[1], context->saved_data["out"].toInt()}, context->needs_input_grad(0),
                                    context->needs_input_grad(1));
    const bool biased = context->saved_data["bias"].toBool();
    const at::Tensor none;
    return {d.x.defined() ? with_leading_sizes_of(gradients[0], d.x) : none, d.weight, biased ? ops::column_sums(dy) : none, none, none};
  }
};

}  // namespace

at::Tensor linear(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out) {
  return Linear::apply(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, reinterpret_cast<int64_t>(&product), out);
}

}  // namespace colossal::parallel
