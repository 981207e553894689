#include "colossal/nn/grouped_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "colossal/nn/unary_capsule.h"
#include "colossal/ops/gradient_sum.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Adds the weight gradient to a queue. The task passes it on as backward would have.
void put_off_group(DeferredGradients& deferred, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& source,
                   const Unary& before, const at::Tensor& weight, const ops::GroupEnds& ends) {
  deferred.add([=] {
    at::Tensor gradient, sum;
    {
      const at::NoGradGuard no_grad;
      sum = ops::gradient_sum(weight);
      gradient = ops::grouped_tn(dy, x.defined() ? x : before(source).contiguous(), ends, sum);
    }
    if (!sum.defined()) return torch::autograd::backward({weight}, {gradient});
    if (const auto& hook = torch::autograd::impl::post_acc_grad_hooks(weight)) (*hook)(weight);
  });
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const std::vector<int64_t>& ends, int64_t deferred,
                            const std::optional<c10::IValue>& before, bool keeps) {
    // One scope for the whole stack: the order in which chunks are read does not depend on routing.
    const tensor::ReadScope read({weight, bias.value_or(at::Tensor())});
    const at::Tensor input = before ? unary_of(*before)(x) : x, rows = input.contiguous();
    const at::Tensor y = ops::grouped_nt(rows, weight, ends, bias.value_or(at::Tensor()));
    if (!keeps) return y;
    const bool uses_x = weight.requires_grad();
    context->save_for_backward(
        {before || !uses_x ? at::Tensor() : rows, weight, before ? x : at::Tensor()});
    if (before) context->saved_data["before"] = *before;
    context->saved_data["ends"] = ends;
    context->saved_data["deferred"] = deferred;
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &kept = saved[0], &weight = saved[1], dy = gradients[0].contiguous();
    const ops::GroupEnds ends = context->saved_data["ends"].toIntVector();
    auto* deferred = reinterpret_cast<DeferredGradients*>(context->saved_data["deferred"].toInt());
    const Unary before = saved[2].defined() ? unary_of(context->saved_data["before"]) : Unary();
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    const bool defers = wants_weight && deferred && deferred->active();
    at::Tensor source, input;  // connected by autograd if `before` is given
    if (before && (wants_x || wants_weight)) {
      const at::AutoGradMode again(wants_x);
      source = saved[2].detach().requires_grad_(wants_x);
      input = before(source);
    }
    at::Tensor dx, dweight, sum;
    {
      const tensor::ReadScope read({weight});
      if (wants_x) dx = ops::grouped_nn(dy, weight, ends);
    }
    if (defers) {
      put_off_group(*deferred, dy, kept, saved[2], before, weight, ends);
    } else if (wants_weight) {
      sum = ops::gradient_sum(weight);
      dweight = ops::grouped_tn(dy, kept.defined() ? kept : input.detach().contiguous(), ends, sum);
    }
    if (before && wants_x) {
      torch::autograd::backward({input}, {dx});
      dx = source.grad();
    }
    const at::Tensor none;
    const at::Tensor dbias = context->saved_data["bias"].toBool() ? ops::grouped_sums(dy, ends) : none;
    return {dx, sum.defined() ? none : dweight, dbias, none, none, none, none};
  }
};

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const ops::GroupEnds& ends, DeferredGradients* deferred, const Unary& before) {
  const auto wants = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  const bool keeps = at::GradMode::is_enabled() && (wants(x) || wants(weight) || wants(bias));
  return GroupedLinear::apply(x, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt, ends,
                              reinterpret_cast<int64_t>(deferred),
                              before ? std::optional<c10::IValue>(capsule_of(before)) : std::nullopt, keeps);
}

}  // namespace colossal::nn
