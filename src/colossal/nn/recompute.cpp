#include "colossal/nn/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/nn/input_store.h"
#include "colossal/tensor/flops.h"

namespace colossal::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// State of a node besides its saved tensors.
struct Held : torch::CustomClassHolder {
  Held(Nary function, const std::vector<at::Tensor>& inputs) : function(std::move(function)) {
    for (const at::Tensor& x : inputs) has_gradient.push_back(x.requires_grad());
  }
  Nary function;
  std::vector<bool> has_gradient;                // one per input
  std::vector<at::Tensor> known{};               // the outputs, if forward has computed them already
  bool is_offloaded = false;                     // true = the inputs are in an InputStore
  std::unique_ptr<OffloadedInputs> offloaded{};  // null after backward
};

std::vector<at::Tensor> inputs_of(AutogradContext& context, Held& held) {
  if (!held.is_offloaded) {
    std::vector<at::Tensor> inputs = context.get_saved_variables();
    inputs.resize(held.has_gradient.size());
    return inputs;
  }
  const std::unique_ptr<OffloadedInputs> offloaded = std::move(held.offloaded);
  require(offloaded != nullptr, "recompute",
          "an offloaded input is available for one backward pass only: got a second one");
  return offloaded->take();
}

std::vector<at::Tensor> computed_again(const Nary& function, const std::vector<at::Tensor>& inputs) {
  const tensor::RecomputationScope recomputation;
  return function(inputs);
}

struct Recomputed : torch::autograd::Function<Recomputed> {
  /// `given` has the inputs. If none of them has a gradient, it has one more tensor that does, at the end, and the
  /// outputs are known.
  static variable_list forward(AutogradContext* context, at::TensorList given, const c10::intrusive_ptr<Held>& held,
                               InputStore* store) {
    const auto count = static_cast<std::ptrdiff_t>(held->has_gradient.size());
    const std::vector<at::Tensor> inputs(given.begin(), given.begin() + count);
    held->is_offloaded = store != nullptr;
    if (store) {
      std::vector<at::Tensor> values;
      for (const at::Tensor& x : inputs) values.push_back(x.detach());
      held->offloaded = store->offload(values);
    } else {
      context->save_for_backward(inputs);
    }
    context->saved_data["held"] = c10::IValue::make_capsule(held);
    context->saved_data["given"] = static_cast<int64_t>(given.size());
    context->set_materialize_grads(false);  // an output that is not used gets no gradient
    const bool is_known = !held->known.empty();
    std::vector<at::Tensor> outputs = is_known ? std::exchange(held->known, {}) : held->function(inputs);
    std::vector<at::Tensor> without;
    for (at::Tensor& y : outputs) {
      const bool has_gradient = is_known ? y.requires_grad() : y.is_floating_point();
      if (is_known) y = y.detach();
      if (!has_gradient) without.push_back(y);
    }
    context->mark_non_differentiable(without);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    auto& held = *static_cast<Held*>(context->saved_data["held"].toCapsule().get());
    std::vector<at::Tensor> inputs = inputs_of(*context, held);
    for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = inputs[i].detach().requires_grad_(held.has_gradient[i]);
    {
      const at::AutoGradMode again(true);
      const std::vector<at::Tensor> outputs = computed_again(held.function, inputs);
      variable_list from, gradients_there;
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
        from.push_back(outputs[i]);
        gradients_there.push_back(gradients[i]);
      }
      if (!from.empty()) torch::autograd::backward(from, gradients_there);
    }
    // One entry per tensor that was given, and one for each of the other two arguments.
    variable_list of_inputs(static_cast<size_t>(context->saved_data["given"].toInt()) + 2);
    for (size_t i = 0; i < inputs.size(); ++i) of_inputs[i] = inputs[i].grad();
    return of_inputs;
  }
};

}  // namespace

std::vector<at::Tensor> recomputed(const Nary& function, const std::vector<at::Tensor>& inputs, InputStore* store) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  const auto have_none = [](const std::vector<at::Tensor>& tensors) {
    return std::none_of(tensors.begin(), tensors.end(), [](const at::Tensor& x) { return x.requires_grad(); });
  };
  const auto held = c10::make_intrusive<Held>(function, inputs);
  std::vector<at::Tensor> given = inputs;
  if (have_none(inputs)) {
    // The outputs alone show whether the function uses a trained parameter. Autograd visits a node only if one of its
    // inputs has a gradient, and parameters are not among the inputs.
    held->known = held->function(inputs);
    if (have_none(held->known)) return std::exchange(held->known, {});
    given.push_back(at::empty({0}, held->known.front().options().dtype(at::kFloat)).requires_grad_());
  }
  return Recomputed::apply(at::TensorList(given), held, store);
}

std::vector<at::Tensor> recomputed(const Nary& function, const std::vector<at::Tensor>& inputs) {
  return recomputed(function, inputs, nullptr);
}

at::Tensor recomputed(const Unary& function, const at::Tensor& x) {
  const auto of_one = [function](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{function(inputs[0])};
  };
  return recomputed(Nary(of_one), {x}).front();
}

}  // namespace colossal::nn
