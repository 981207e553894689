#include "colossal/ops/activation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/ops/device/tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/made_again.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/moved_bytes.h"
#include "colossal/tensor/whole_operator.h"

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
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record({"activation", "...->...", {x}, [](const auto& in) { return anywhere<function>(in[0]); }});
  return x.is_meta() ? at::sigmoid(x) : function(x);
}

}  // namespace

at::Tensor gelu_reference(const at::Tensor& x) { return at::gelu(x, "tanh"); }

at::Tensor gelu(const at::Tensor& x) {
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record({"gelu_tanh", "...->...", {x}, [](const auto& in) { return ops::gelu(in[0]); }});
  return has_kernel(x) ? tensor::apply_function<Gelu>(x) : gelu_reference(x);
}

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
  for (const Activation& known : activations())
    if (name == known.name) return known;
  throw Error("activation",
              concat("must be one of ", colossal::join(activations(), ", ", &Activation::name), ": got ", name));
}

bool computes_by_element(const Activation& activation, bool gated) {
  const auto is_one_of = [](auto function, auto... known) { return ((function == known) || ...); };
  if (gated && is_one_of(activation.gated, fused_swiglu)) return true;
  return is_one_of(activation.plain, gelu, anywhere<relu>, anywhere<squared_relu>, anywhere<relu_to_6>,
                   anywhere<leaky_relu>, identity);
}

// Gated activations: function(gate) * up.
namespace {

constexpr int64_t kGatedGrain = 8192;

// Returns a matrix view [rows, columns] with contiguous rows and any row stride.
at::Tensor as_rows(const at::Tensor& x) {
  const auto rows = x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2);
  return rows.size(1) > 1 && rows.stride(1) != 1 ? rows.contiguous() : rows;
}

template <class T, class Pointed>
GatedRows<Pointed> gated(const at::Tensor& gate, const at::Tensor& up) {
  return {gate.size(1), gate.stride(0), up.stride(0), pointer<T>(gate), pointer<T>(up)};
}

/// Returns true if our kernel computes the gate.
bool is_gated_by_us(const at::Tensor& x) { return x.dim() > 0 && (has_kernel(x) || has_device_kernels(x)); }

int64_t rows_at_once(int64_t columns) { return std::max<int64_t>(kGatedGrain / std::max<int64_t>(columns, 1), 1); }

enum class Gate : int64_t { Silu, Gelu, Sigmoid };

/// Returns the kernel of a gate from a table of the CPU or of a device.
template <class Kernels>
auto forward_of(const Kernels& table, Gate gate) {
  if (gate == Gate::Sigmoid) return table.sigmoid_gate_forward;
  return gate == Gate::Silu ? table.swiglu_forward : table.geglu_forward;
}
template <class Kernels>
auto backward_of(const Kernels& table, Gate gate) {
  if (gate == Gate::Sigmoid) return table.sigmoid_gate_backward;
  return gate == Gate::Silu ? table.swiglu_backward : table.geglu_backward;
}

void gated_rows(Gate kind, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& y) {
  const tensor::KernelBytes bytes({gate, up}, {y});
  if (with_device_kernels(gate, [&](auto element, const auto& kernel, void* stream) {
        using T = decltype(element);
        forward_of(kernel, kind)(gated<T, const T>(gate, up), pointer<T>(y), gate.size(0), stream);
      }))
    return;
  with_element_type(gate, [&](auto element) {
    using T = decltype(element);
    const auto kernel = forward_of(kernels<T>(), kind);
    const auto in = gated<T, const T>(gate, up);
    parallel_for(0, gate.size(0), rows_at_once(in.columns),
                 [&](int64_t from, int64_t to) { kernel(in, pointer<T>(y), from, to); });
  });
}

void gated_rows_backward(Gate kind, const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up,
                         const at::Tensor& dgate, const at::Tensor& dup) {
  const tensor::KernelBytes bytes({dy, gate, up}, {dgate, dup});
  if (with_device_kernels(gate, [&](auto element, const auto& kernel, void* stream) {
        using T = decltype(element);
        const auto in = gated<T, const T>(gate, up);
        backward_of(kernel, kind)(pointer<T>(dy), in, gated<T, T>(dgate, dup), gate.size(0), stream);
      }))
    return;
  with_element_type(gate, [&](auto element) {
    using T = decltype(element);
    const auto kernel = backward_of(kernels<T>(), kind);
    const auto in = gated<T, const T>(gate, up);
    const auto out = gated<T, T>(dgate, dup);
    parallel_for(0, gate.size(0), rows_at_once(in.columns),
                 [&](int64_t from, int64_t to) { kernel(pointer<T>(dy), in, out, from, to); });
  });
}

struct GatedPair : Function<GatedPair> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up, int64_t kind) {
    if (context) {
      context->save_for_backward({gate, up});
      context->saved_data["kind"] = kind;
    }
    auto y = at::empty(gate.sizes(), gate.options());
    if (y.numel() > 0) gated_rows(static_cast<Gate>(kind), as_rows(gate), as_rows(up), y);
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto kind = static_cast<Gate>(context->saved_data["kind"].toInt());
    auto dgate = at::empty(saved[0].sizes(), saved[0].options()), dup = at::empty(saved[1].sizes(), saved[1].options());
    if (dgate.numel() > 0)
      gated_rows_backward(kind, gradients[0].contiguous(), as_rows(saved[0]), as_rows(saved[1]), as_rows(dgate),
                          as_rows(dup));
    return {dgate, dup, at::Tensor()};
  }
};

// Backward writes the gradients of both halves to one tensor, because autograd would pad two tensors with zeros and add
// them.
struct FusedGate : Function<FusedGate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up, int64_t kind) {
    if (context) {
      context->save_for_backward({gate_up});
      context->saved_data["kind"] = kind;
    }
    auto shape = gate_up.sizes().vec();
    shape.back() /= 2;
    auto y = at::empty(shape, gate_up.options());
    if (y.numel() == 0) return y;
    const auto halves = as_rows(gate_up).chunk(2, 1);
    gated_rows(static_cast<Gate>(kind), halves[0], halves[1], y);
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto gate_up = context->get_saved_variables()[0];
    auto gradient = at::empty(gate_up.sizes(), gate_up.options());
    if (gradient.numel() == 0) return {gradient, at::Tensor()};
    const auto halves = as_rows(gate_up).chunk(2, 1), out = as_rows(gradient).chunk(2, 1);
    const auto kind = static_cast<Gate>(context->saved_data["kind"].toInt());
    gated_rows_backward(kind, gradients[0].contiguous(), halves[0], halves[1], out[0], out[1]);
    return {gradient, at::Tensor()};
  }
};

// The path of devices without kernels of ours: LibTorch's kernels, one pass each. Backward computes silu again instead
// of saving it.
at::Tensor library_swiglu(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate).mul_(up); }

void library_swiglu_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, at::Tensor dgate,
                             at::Tensor dup) {
  at::mul_out(dup, dy, at::silu(gate));
  at::silu_backward_out(dgate, dy * up, gate);
}

struct LibrarySwiglu : Function<LibrarySwiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    return library_swiglu(gate, up);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor dgate = at::empty_like(saved[0]), dup = at::empty_like(saved[1]);
    library_swiglu_backward(gradients[0], saved[0], saved[1], dgate, dup);
    return {dgate, dup};
  }
};

struct LibraryFusedSwiglu : Function<LibraryFusedSwiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    context->save_for_backward({gate_up});
    const auto halves = gate_up.chunk(2, -1);
    return library_swiglu(halves[0], halves[1]);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor gate_up = context->get_saved_variables()[0], gradient = at::empty_like(gate_up);
    const auto halves = gate_up.chunk(2, -1), out = gradient.chunk(2, -1);
    library_swiglu_backward(gradients[0], halves[0], halves[1], out[0], out[1]);
    return {gradient};
  }
};

void check_pair(const at::Tensor& gate, const at::Tensor& up, const char* what) {
  require(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() && gate.device() == up.device(), what,
          "gate and up must have one shape, dtype and device: got ", gate.sizes(), " on ", gate.device(), " and ",
          up.sizes(), " on ", up.device());
}

void check_halves(const at::Tensor& gate_up, const char* what) {
  require(gate_up.dim() > 0 && gate_up.size(-1) % 2 == 0, what, "the last dimension must be even: got ",
          gate_up.sizes());
}

}  // namespace

at::Tensor swiglu_reference(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate) * up; }

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  check_pair(gate, up, "swiglu");
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record(
        {"swiglu", "...,...->...", {gate, up}, [](const auto& in) { return swiglu(in[0], in[1]); }});
  if (is_gated_by_us(gate)) return tensor::apply_function<GatedPair>(gate, up, static_cast<int64_t>(Gate::Silu));
  return is_for_accelerator(gate) ? LibrarySwiglu::apply(gate, up) : swiglu_reference(gate, up);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  check_halves(gate_up, "swiglu");
  if (is_gated_by_us(gate_up)) return tensor::apply_function<FusedGate>(gate_up, static_cast<int64_t>(Gate::Silu));
  if (is_for_accelerator(gate_up)) return LibraryFusedSwiglu::apply(gate_up);
  const auto halves = gate_up.chunk(2, -1);
  return swiglu_reference(halves[0], halves[1]);
}

at::Tensor sigmoid_gate_reference(const at::Tensor& gate, const at::Tensor& up) { return at::sigmoid(gate) * up; }

at::Tensor sigmoid_gate(const at::Tensor& gate, const at::Tensor& up) {
  check_pair(gate, up, "sigmoid_gate");
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record(
        {"sigmoid_gate", "...,...->...", {gate, up}, [](const auto& in) { return sigmoid_gate(in[0], in[1]); }});
  if (is_gated_by_us(gate)) return tensor::apply_function<GatedPair>(gate, up, static_cast<int64_t>(Gate::Sigmoid));
  return sigmoid_gate_reference(gate, up);
}

at::Tensor geglu(const at::Tensor& gate_up) {
  check_halves(gate_up, "geglu");
  if (is_gated_by_us(gate_up)) return tensor::apply_function<FusedGate>(gate_up, static_cast<int64_t>(Gate::Gelu));
  return gated_by<gelu>(gate_up);
}

}  // namespace colossal::ops
