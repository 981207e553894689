#include "colossal/nn/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/nn/unary_capsule.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const c10::IValue& function) {
    context->save_for_backward({x});
    context->saved_data["function"] = function;
    return unary_of(function)(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    {
      const at::AutoGradMode again(true);
      torch::autograd::backward({unary_of(context->saved_data["function"])(x)}, {gradients[0]});
    }
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recomputed(const Unary& function, const at::Tensor& x) {
  if (!at::GradMode::is_enabled()) return function(x);
  require(x.requires_grad(), "recompute", "the kept activation must require a gradient: got one that does not");
  return Recomputed::apply(x, capsule_of(function));
}

}  // namespace colossal::nn
