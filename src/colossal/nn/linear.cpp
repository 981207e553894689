#include "colossal/nn/linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/ops/matmul.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) {
  const at::Tensor rows = x.dim() == 2 ? x : x.reshape({x.numel() / std::max<int64_t>(x.size(-1), 1), x.size(-1)});
  return rows.stride(-1) == 1 || rows.size(-1) == 1 ? rows : rows.contiguous();
}

at::Tensor with_leading_sizes_of(const at::Tensor& x, const at::Tensor& rows) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = rows.size(-1);
  return rows.view(sizes);
}

struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            int64_t product, int64_t out, int64_t deferred) {
    Product::Saved saved;
    const at::Tensor y = reinterpret_cast<const Product*>(product)->forward(rows_of(x), weight, bias.value_or(at::Tensor()), out, &saved);
    context->save_for_backward({saved.x, saved.weight, weight});
    context->saved_data["product"] = product;
    context->saved_data["out"] = out;
    context->saved_data["deferred"] = deferred;
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    return with_leading_sizes_of(x, y);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto* product = reinterpret_cast<const Product*>(context->saved_data["product"].toInt());
    auto* deferred = reinterpret_cast<DeferredGradients*>(context->saved_data["deferred"].toInt());
    const int64_t out = context->saved_data["out"].toInt();
    const at::Tensor dy = rows_of(gradients[0]);
    const bool wants_weight = context->needs_input_grad(1), defers = wants_weight && deferred && deferred->active();
    const auto d = product->backward(dy, {saved[0], saved[1], out}, {context->needs_input_grad(0), wants_weight && !defers});
    if (defers) {
      // From the weight on the gradient goes the way it would have gone now: through whatever the weight was made of, to its leaf.
      deferred->add([product, dy, x = saved[0], weight = saved[2], out] {
        at::Tensor gradient;
        {
          const at::NoGradGuard no_grad;
          gradient = product->backward(dy, {x, {}, out}, {.x = false, .weight = true}).weight;
        }
        torch::autograd::backward({weight}, {gradient});
      });
    }
    const at::Tensor none;
    return {d.x.defined() ? with_leading_sizes_of(gradients[0], d.x) : none, d.weight,
            context->saved_data["bias"].toBool() ? ops::column_sums(dy) : none, none, none, none};
  }
};

}  // namespace

at::Tensor linear(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, int64_t out,
                  DeferredGradients* deferred) {
  // An undefined tensor may not be an argument of a Function; an absent optional may.
  return Linear::apply(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, reinterpret_cast<int64_t>(&product), out,
                       reinterpret_cast<int64_t>(deferred));
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, DeferredGradients* deferred) {
  require(weight.dim() == 2 && x.dim() > 0 && x.size(-1) == weight.size(1), "linear", "input must be [..., ",
          weight.dim() == 2 ? weight.size(1) : -1, "] for weight ", weight.sizes(), ": got ", x.sizes());
  require(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "linear", "bias must be [",
          weight.size(0), "]: got ", bias.defined() ? bias.sizes() : at::IntArrayRef());
  return linear(serial_product(), x, weight, bias, weight.size(0), deferred);
}

}  // namespace colossal::nn
