#include "colossal/nn/grouped_linear.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/custom_class.h>

#include "colossal/nn/recompute.h"
#include "colossal/ops/gradient_sum.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a node keeps besides its saved tensors. The tensors of the product are kept in it and not in the node, because
/// their number depends on the product; they have no graph of their own.
struct GroupState : torch::CustomClassHolder {
  const GroupedProduct* product = nullptr;
  ops::GroupEnds ends;
  DeferredGradients* deferred = nullptr;
  Unary before;
  GroupedProduct::Saved saved;
  bool has_bias_gradient = false;
};

/// Adds the weight gradient to a queue. The task passes it on as backward would have.
void put_off_group(const c10::intrusive_ptr<GroupState>& state, const at::Tensor& dy, const at::Tensor& x,
                   const at::Tensor& source, const at::Tensor& weight) {
  state->deferred->add([=] {
    at::Tensor gradient, sum;
    {
      const at::NoGradGuard no_grad;
      GroupedProduct::Saved saved = state->saved;
      saved.x = x.defined() || !state->before ? x : state->before(source).contiguous();
      saved.weight = weight;
      sum = ops::gradient_sum(weight);
      gradient = state->product->weight_gradient(dy, saved, state->ends, sum);
    }
    if (!sum.defined()) return torch::autograd::backward({weight}, {gradient});
    if (const auto& hook = torch::autograd::impl::post_acc_grad_hooks(weight)) (*hook)(weight);
  });
}

struct GroupedLinear : torch::autograd::Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, const c10::intrusive_ptr<GroupState>& state,
                            bool keeps) {
    // One scope for the whole stack: the order in which chunks are read does not depend on routing.
    const tensor::ReadScope read({weight, bias.value_or(at::Tensor())});
    const Unary& before = state->before;
    const at::Tensor rows = (before ? before(x) : x).contiguous();
    GroupedProduct::Saved saved;
    const at::Tensor y =
        state->product->forward(rows, weight, bias.value_or(at::Tensor()), state->ends, keeps ? &saved : nullptr);
    if (!keeps) return y;
    // The output of `before` is computed again from x, unless the product keeps its own form of it.
    const bool forgets = before || !weight.requires_grad();
    context->save_for_backward({forgets ? at::Tensor() : saved.x, weight, before ? x : at::Tensor()});
    saved.x = saved.weight = at::Tensor();
    state->saved = std::move(saved);
    state->has_bias_gradient = bias.has_value() && bias->requires_grad();
    context->saved_data["state"] = c10::IValue::make_capsule(state);
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto held = context->get_saved_variables();
    const auto state = c10::static_intrusive_pointer_cast<GroupState>(context->saved_data["state"].toCapsule());
    const at::Tensor &weight = held[1], dy = gradients[0].contiguous();
    const bool wants_x = context->needs_input_grad(0), wants_weight = context->needs_input_grad(1);
    const bool defers = wants_weight && state->deferred && state->deferred->active();
    at::Tensor source, input;  // connected by autograd if `before` is given
    if (state->before && (wants_x || wants_weight)) {
      const at::AutoGradMode again(wants_x);
      source = held[2].detach().requires_grad_(wants_x);
      input = state->before(source);
    }
    GroupedProduct::Saved saved = state->saved;
    saved.x = held[0].defined() || !input.defined() ? held[0] : input.detach().contiguous();
    saved.weight = weight;
    at::Tensor dx, dweight, sum;
    {
      const tensor::ReadScope read({weight});
      if (wants_x) dx = state->product->input_gradient(dy, saved, state->ends);
      if (defers) {
        put_off_group(state, dy, held[0], held[2], weight);
      } else if (wants_weight) {
        sum = ops::gradient_sum(weight);
        dweight = state->product->weight_gradient(dy, saved, state->ends, sum);
      }
    }
    if (state->before && wants_x) {
      torch::autograd::backward({input}, {dx});
      dx = source.grad();
    }
    const at::Tensor none;
    const at::Tensor dbias = state->has_bias_gradient ? ops::grouped_sums(dy, state->ends) : none;
    return {dx, sum.defined() ? none : dweight, dbias, none, none};
  }
};

}  // namespace

at::Tensor grouped_linear(const GroupedProduct& product, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias, const ops::GroupEnds& ends, DeferredGradients* deferred,
                          const Unary& before) {
  const auto wants = [](const at::Tensor& t) { return t.defined() && t.requires_grad(); };
  const bool keeps = at::GradMode::is_enabled() && (wants(x) || wants(weight) || wants(bias));
  const auto state = c10::make_intrusive<GroupState>();
  state->product = &product, state->ends = ends, state->deferred = deferred, state->before = before;
  const auto given = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return tensor::apply_function<GroupedLinear>(x, weight, given, state, keeps);
}

}  // namespace colossal::nn
