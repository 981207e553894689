#include "colossal/nn/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/input_home.h"
#include "colossal/nn/unary_capsule.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct InputCapsule : torch::CustomClassHolder {
  explicit InputCapsule(std::unique_ptr<KeptInput> input) : input(std::move(input)) {}
  std::unique_ptr<KeptInput> input;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  /// `known`: the result, if the caller has it already; then the gradient of x is not wanted.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const c10::IValue& function, InputHome* home,
                            const std::optional<at::Tensor>& known) {
    if (home)
      context->saved_data["input"] =
          c10::IValue::make_capsule(c10::make_intrusive<InputCapsule>(home->keep(x.detach())));
    else
      context->save_for_backward({x});
    context->saved_data["function"] = function;
    context->saved_data["wants_x"] = !known.has_value();
    return known ? known->detach() : unary_of(function)(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = input_of(*context).detach().requires_grad_(context->saved_data["wants_x"].toBool());
    {
      const at::AutoGradMode again(true);
      torch::autograd::backward({unary_of(context->saved_data["function"])(x)}, {gradients[0]});
    }
    return {x.grad(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
  static at::Tensor input_of(AutogradContext& context) {
    const auto found = context.saved_data.find("input");
    if (found == context.saved_data.end()) return context.get_saved_variables()[0];
    const auto input = std::move(static_cast<InputCapsule*>(found->second.toCapsule().get())->input);
    require(input != nullptr, "recompute",
            "an offloaded input is available for one backward pass only: got a second one");
    return input->take();
  }
};

}  // namespace

at::Tensor recomputed(const Unary& function, const at::Tensor& x, InputHome* home) {
  if (!at::GradMode::is_enabled()) return function(x);
  if (x.requires_grad()) return Recomputed::apply(x, capsule_of(function), home, std::optional<at::Tensor>());
  // Only the result says whether the function uses something that is trained. A node of autograd needs an input with a
  // gradient, so it is given an alias of x, whose gradient is not made.
  const at::Tensor y = function(x);
  if (!y.requires_grad()) return y;
  return Recomputed::apply(x.detach().requires_grad_(), capsule_of(function), home,
                           std::optional<at::Tensor>(y.detach()));
}

at::Tensor recomputed(const Unary& function, const at::Tensor& x) { return recomputed(function, x, nullptr); }

}  // namespace colossal::nn
