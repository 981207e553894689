#include "colossal/ops/activation.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/ops/device_tables.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kActivationGrain = 8192;

at::Tensor gelu_elements(const at::Tensor& input) {
  const auto x = input.contiguous();
  auto y = at::empty(x.sizes(), x.options());
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
    context->save_for_backward({x});
    return gelu_elements(x);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {ops::gelu_backward(gradients[0], context->get_saved_variables()[0])};
  }
};

// A matrix view [rows, columns] whose rows are contiguous, wherever they lie.
at::Tensor as_rows(const at::Tensor& x) {
  const auto rows = x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2);
  return rows.size(1) > 1 && rows.stride(1) != 1 ? rows.contiguous() : rows;
}

template <class T, class Pointed>
GatedRows<Pointed> gated(const at::Tensor& gate, const at::Tensor& up) {
  return {gate.size(1), gate.stride(0), up.stride(0), pointer<T>(gate), pointer<T>(up)};
}

/// Whether ours is the kernel that gates.
bool is_gated_by_us(const at::Tensor& x) { return x.dim() > 0 && (has_kernel(x) || has_device_kernels(x)); }

int64_t grain_rows(int64_t columns) { return std::max<int64_t>(kActivationGrain / std::max<int64_t>(columns, 1), 1); }

void swiglu_rows(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& y) {
  if (with_device_kernels(gate, [&](auto element, const auto& kernel, void* stream) {
        using T = decltype(element);
        kernel.swiglu_forward(gated<T, const T>(gate, up), pointer<T>(y), gate.size(0), stream);
      }))
    return;
  with_element_type(gate, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const auto in = gated<T, const T>(gate, up);
    parallel_for(0, gate.size(0), grain_rows(in.columns),
                 [&](int64_t from, int64_t to) { kernel.swiglu_forward(in, pointer<T>(y), from, to); });
  });
}

void swiglu_rows_backward(const at::Tensor& dy, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dgate,
                          const at::Tensor& dup) {
  if (with_device_kernels(gate, [&](auto element, const auto& kernel, void* stream) {
        using T = decltype(element);
        const auto in = gated<T, const T>(gate, up);
        kernel.swiglu_backward(pointer<T>(dy), in, gated<T, T>(dgate, dup), gate.size(0), stream);
      }))
    return;
  with_element_type(gate, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    const auto in = gated<T, const T>(gate, up);
    const auto out = gated<T, T>(dgate, dup);
    parallel_for(0, gate.size(0), grain_rows(in.columns),
                 [&](int64_t from, int64_t to) { kernel.swiglu_backward(pointer<T>(dy), in, out, from, to); });
  });
}

struct Swiglu : Function<Swiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    context->save_for_backward({gate, up});
    auto y = at::empty(gate.sizes(), gate.options());
    if (y.numel() > 0) swiglu_rows(as_rows(gate), as_rows(up), y);
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto dgate = at::empty(saved[0].sizes(), saved[0].options()), dup = at::empty(saved[1].sizes(), saved[1].options());
    if (dgate.numel() > 0)
      swiglu_rows_backward(gradients[0].contiguous(), as_rows(saved[0]), as_rows(saved[1]), as_rows(dgate),
                           as_rows(dup));
    return {dgate, dup};
  }
};

// The gradient of both halves goes straight into one tensor: autograd's own way would be two padded with zeros and
// added.
struct FusedSwiglu : Function<FusedSwiglu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    context->save_for_backward({gate_up});
    auto shape = gate_up.sizes().vec();
    shape.back() /= 2;
    auto y = at::empty(shape, gate_up.options());
    if (y.numel() == 0) return y;
    const auto halves = as_rows(gate_up).chunk(2, 1);
    swiglu_rows(halves[0], halves[1], y);
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto gate_up = context->get_saved_variables()[0];
    auto gradient = at::empty(gate_up.sizes(), gate_up.options());
    if (gradient.numel() == 0) return {gradient};
    const auto halves = as_rows(gate_up).chunk(2, 1), out = as_rows(gradient).chunk(2, 1);
    swiglu_rows_backward(gradients[0].contiguous(), halves[0], halves[1], out[0], out[1]);
    return {gradient};
  }
};

// Where there are none of ours: by LibTorch's kernels, each with one pass: silu is made again in backward instead of
// kept.
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

}  // namespace

at::Tensor gelu_reference(const at::Tensor& x) { return at::gelu(x, "tanh"); }
at::Tensor swiglu_reference(const at::Tensor& gate, const at::Tensor& up) { return at::silu(gate) * up; }

at::Tensor gelu(const at::Tensor& x) { return has_kernel(x) ? Gelu::apply(x) : gelu_reference(x); }

// the library's kernel is vectorised already
at::Tensor exact_gelu(const at::Tensor& x) { return at::gelu(x, "none"); }

at::Tensor gelu_backward(const at::Tensor& gradient, const at::Tensor& input) {
  at::NoGradGuard no_grad;
  if (!has_kernel(input)) return at::gelu_backward(gradient, input, "tanh");
  const auto x = input.contiguous(), dy = gradient.contiguous();
  auto dx = at::empty(x.sizes(), x.options());
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const auto& kernel = kernels<T>();
    parallel_for(0, x.numel(), kActivationGrain, [&](int64_t from, int64_t to) {
      kernel.gelu_backward(pointer<T>(dy) + from, pointer<T>(x) + from, pointer<T>(dx) + from, to - from);
    });
  });
  return dx;
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  require(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() && gate.device() == up.device(),
          "swiglu", "gate and up must have one shape, dtype and device: got ", gate.sizes(), " on ", gate.device(),
          " and ", up.sizes(), " on ", up.device());
  if (is_gated_by_us(gate)) return Swiglu::apply(gate, up);
  return is_elsewhere(gate) ? LibrarySwiglu::apply(gate, up) : swiglu_reference(gate, up);
}

at::Tensor swiglu(const at::Tensor& gate_up) {
  require(gate_up.dim() > 0 && gate_up.size(-1) % 2 == 0, "swiglu", "the last dimension must be even: got ",
          gate_up.sizes());
  if (is_gated_by_us(gate_up)) return FusedSwiglu::apply(gate_up);
  if (is_elsewhere(gate_up)) return LibraryFusedSwiglu::apply(gate_up);
  const auto halves = gate_up.chunk(2, -1);
  return swiglu_reference(halves[0], halves[1]);
}

}  // namespace colossal::ops
