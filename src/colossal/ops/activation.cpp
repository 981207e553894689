#include "colossal/ops/activation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/made_again.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/moved_bytes.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kActivationGrain = 8192;

at::Tensor gelu_elements(const at::Tensor& input) {
  const auto x = input.contiguous();
  auto y = at::empty(x.sizes(), x.options());
  const tensor::KernelBytes bytes({x}, {y});
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    parallel_for(0, x.numel(), kActivationGrain, [&](int64_t from, int64_t to) {
      kernel.gelu_forward(pointer<T>(x) + from, pointer<T>(y) + from, to - from);
    });
  });
  return y;
}

struct Gelu : Function<Gelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    if (context) context->save_for_backward({x});
    return gelu_elements(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {ops::gelu_backward(gradients[0], context->get_saved_variables()[0])};
  }
};

// Formulas of several operators. made_again() wraps them, because each operator would save a tensor of its own.
at::Tensor quick_gelu_formula(const at::Tensor& x) { return x * at::sigmoid(1.702 * x); }
at::Tensor clipped_gelu_formula(const at::Tensor& x) { return exact_gelu(x).clamp(-10, 10); }
at::Tensor laplace_formula(const at::Tensor& x) {
  constexpr double kMean = 0.707107, kDeviation = 0.282095;
  return 0.5 * (1 + at::erf((x - kMean) / (kDeviation * M_SQRT2)));
}
at::Tensor root_softplus_formula(const at::Tensor& x) { return at::softplus(x).sqrt(); }

at::Tensor quick_gelu(const at::Tensor& x) { return made_again<quick_gelu_formula>(x); }
at::Tensor clipped_gelu(const at::Tensor& x) { return made_again<clipped_gelu_formula>(x); }
at::Tensor laplace(const at::Tensor& x) { return made_again<laplace_formula>(x); }
at::Tensor root_softplus(const at::Tensor& x) { return made_again<root_softplus_formula>(x); }

// Functions for which LibTorch saves only one tensor.
at::Tensor silu(const at::Tensor& x) { return at::silu(x); }
at::Tensor relu(const at::Tensor& x) { return at::relu(x); }
at::Tensor squared_relu(const at::Tensor& x) { return at::relu(x).square(); }
at::Tensor relu_to_6(const at::Tensor& x) { return at::hardtanh(x, 0, 6); }
at::Tensor leaky_relu(const at::Tensor& x) { return at::leaky_relu(x); }
at::Tensor hardswish(const at::Tensor& x) { return at::hardswish(x); }
at::Tensor mish(const at::Tensor& x) { return at::mish(x); }
at::Tensor hyperbolic_tangent(const at::Tensor& x) { return at::tanh(x); }
at::Tensor logistic(const at::Tensor& x) { return at::sigmoid(x); }
at::Tensor identity(const at::Tensor& x) { return x; }
at::Tensor fused_swiglu(const at::Tensor& x) { return swiglu(x); }

// LibTorch does not implement some of these functions, or their derivatives, for meta tensors. Sigmoid gives the same
// sizes there.
template <PlainFunction function>
at::Tensor anywhere(const at::Tensor& x) {
  return x.is_meta() ? at::sigmoid(x) : function(x);
}

}  // namespace

at::Tensor gelu_reference(const at::Tensor& x) { return at::gelu(x, "tanh"); }

at::Tensor gelu(const at::Tensor& x) { return has_kernel(x) ? tensor::apply_function<Gelu>(x) : gelu_reference(x); }

// LibTorch's kernel is vectorised already
at::Tensor exact_gelu(const at::Tensor& x) { return at::gelu(x, "none"); }

at::Tensor gelu_backward(const at::Tensor& gradient, const at::Tensor& input) {
  at::NoGradGuard no_grad;
  if (!has_kernel(input)) return at::gelu_backward(gradient, input, "tanh");
  const auto x = input.contiguous(), dy = gradient.contiguous();
  auto dx = at::empty(x.sizes(), x.options());
  const tensor::KernelBytes bytes({x, dy}, {dx});
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    parallel_for(0, x.numel(), kActivationGrain, [&](int64_t from, int64_t to) {
      kernel.gelu_backward(pointer<T>(dy) + from, pointer<T>(x) + from, pointer<T>(dx) + from, to - from);
    });
  });
  return dx;
}

const std::vector<Activation>& activations() {
  static const std::vector<Activation> all{
      {"gelu", exact_gelu, gated_by<exact_gelu>},
      {"gelu_python", exact_gelu, gated_by<exact_gelu>},
      {"gelu_new", gelu, geglu},
      {"gelu_pytorch_tanh", gelu, geglu},
      {"gelu_python_tanh", gelu, geglu},
      {"gelu_fast", gelu, geglu},
      {"gelu_accurate", gelu, geglu},
      {"gelu_10", anywhere<clipped_gelu>, gated_by<anywhere<clipped_gelu_formula>>},
      {"quick_gelu", anywhere<quick_gelu>, gated_by<anywhere<quick_gelu_formula>>},
      {"silu", silu, fused_swiglu},
      {"swish", silu, fused_swiglu},
      {"relu", anywhere<relu>, gated_by<anywhere<relu>>},
      {"relu2", anywhere<squared_relu>, gated_by<anywhere<squared_relu>>},
      {"relu6", anywhere<relu_to_6>, gated_by<anywhere<relu_to_6>>},
      {"leaky_relu", anywhere<leaky_relu>, gated_by<anywhere<leaky_relu>>},
      {"hardswish", anywhere<hardswish>, gated_by<anywhere<hardswish>>},
      {"mish", anywhere<mish>, gated_by<anywhere<mish>>},
      {"laplace", anywhere<laplace>, gated_by<anywhere<laplace_formula>>},
      {"sqrtsoftplus", anywhere<root_softplus>, gated_by<anywhere<root_softplus_formula>>},
      {"tanh", hyperbolic_tangent, gated_by<hyperbolic_tangent>},
      {"sigmoid", logistic, gated_by<logistic>},
      {"linear", identity, gated_by<identity>}};
  return all;
}

const Activation& activation(const std::string& name) {
  require(name != "prelu" && name != "xielu", "activation", name,
          " has learned parameters, which are not supported; use a model with another activation");
  std::string names;
  for (const Activation& known : activations()) {
    if (name == known.name) return known;
    names += concat(names.empty() ? "" : ", ", known.name);
  }
  throw Error("activation", concat("must be one of ", names, ": got ", name));
}

}  // namespace colossal::ops
