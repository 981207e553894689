#include "colossal/ops/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/read_scope.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

enum class Kind { Rms, Layer };

constexpr int64_t kGrainElements = 8192;

int64_t grain_rows(int64_t columns) { return std::max<int64_t>(kGrainElements / std::max<int64_t>(columns, 1), 1); }

void check(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, const at::Tensor& bias) {
  require(x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1), "norm",
          "weight must have one entry per column of the input: got ", weight.sizes(), " for input ", x.sizes());
  require(!bias.defined() || bias.sizes() == weight.sizes(), "norm", "bias must be as long as weight ", weight.sizes(),
          ": got ", bias.defined() ? bias.sizes() : at::IntArrayRef());
  require(!residual.defined() || residual.sizes() == x.sizes(), "norm", "input and residual must have one shape: got ",
          x.sizes(), " and ", residual.defined() ? residual.sizes() : at::IntArrayRef());
}

// {x + residual or x, y, mean, scale}; mean is undefined for RMSNorm.
std::array<at::Tensor, 4> forward_rows(Kind kind, const at::Tensor& x, const at::Tensor& residual,
                                       const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  const int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.numel() / columns;
  const auto statistics = x.options().dtype(wide_type(x)).requires_grad(false);
  auto y = at::empty(x.sizes(), x.options()), sum = residual.defined() ? at::empty(x.sizes(), x.options()) : x;
  auto mean = kind == Kind::Layer ? at::empty({rows}, statistics) : at::Tensor(), scale = at::empty({rows}, statistics);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    const NormForward<T> task{columns,
                              pointer<T>(x),
                              pointer<T>(residual),
                              pointer<T>(weight),
                              pointer<T>(bias),
                              residual.defined() ? pointer<T>(sum) : nullptr,
                              pointer<T>(y),
                              pointer<W>(mean),
                              pointer<W>(scale),
                              static_cast<W>(epsilon)};
    const auto& kernel = kernels<T>();
    parallel_for(0, rows, grain_rows(columns), [&](int64_t from, int64_t to) { kernel.norm_forward(task, from, to); });
  });
  return {sum, y, mean, scale};
}

struct Wanted {
  bool x, weight, bias;
};

// {dx, dweight, dbias}: each thread sums the weight's gradient over its own rows first.
std::array<at::Tensor, 3> backward_rows(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& x,
                                        const at::Tensor& weight, const at::Tensor& mean, const at::Tensor& scale,
                                        Wanted wanted) {
  const int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.numel() / columns, grain = grain_rows(columns);
  auto dx = wanted.x ? at::empty(x.sizes(), x.options()) : at::Tensor();
  const auto partial = [&](bool is_wanted) {
    return is_wanted ? at::zeros({parallel_chunks(rows, grain), columns}, scale.options()) : at::Tensor();
  };
  const auto dweight = partial(wanted.weight), dbias = partial(wanted.bias);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    const NormBackward<T> task{columns,          pointer<T>(dy),   pointer<T>(x),     pointer<T>(weight),
                               pointer<T>(dsum), pointer<W>(mean), pointer<W>(scale), pointer<T>(dx)};
    const auto& kernel = kernels<T>();
    parallel_chunks_for(0, rows, grain, [&](int64_t chunk, int64_t from, int64_t to) {
      kernel.norm_backward(task, wanted.weight ? pointer<W>(dweight) + chunk * columns : nullptr,
                           wanted.bias ? pointer<W>(dbias) + chunk * columns : nullptr, from, to);
    });
  });
  const auto total = [&](const at::Tensor& part) {
    return part.defined() ? part.sum(0).to(weight.scalar_type()) : part;
  };
  return {dx, total(dweight), total(dbias)};
}

using Optional = std::optional<at::Tensor>;  // an undefined tensor may not be an argument of a Function

Optional optional(const at::Tensor& t) { return t.defined() ? Optional(t) : std::nullopt; }
at::Tensor dense(const at::Tensor& t) { return t.defined() ? t.contiguous() : t; }

// One node for all four operators. Outputs {y} or, with a residual, {x + residual, y}.
struct Norm : Function<Norm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const Optional& residual, const Optional& bias, double epsilon, bool centred) {
    const tensor::ReadScope read({weight, bias.value_or(at::Tensor())});
    const auto [sum, y, mean, scale] =
        forward_rows(centred ? Kind::Layer : Kind::Rms, x.contiguous(), dense(residual.value_or(at::Tensor())),
                     weight.contiguous(), dense(bias.value_or(at::Tensor())), epsilon);
    context->set_materialize_grads(false);
    context->save_for_backward({sum, weight, mean, scale});
    context->saved_data["bias"] = bias.has_value();
    return residual ? variable_list{sum, y} : variable_list{y};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const bool added = gradients.size() == 2, biased = context->saved_data["bias"].toBool();
    auto needs = [&, edge = size_t{0}](bool present) mutable { return present && context->needs_input_grad(edge++); };
    const bool needs_x = needs(true), needs_weight = needs(true), needs_residual = needs(added),
               needs_bias = needs(biased);
    const auto dy = dense(gradients.back()), dsum = added ? dense(gradients.front()) : at::Tensor();
    const at::Tensor none;
    if (!dy.defined()) return {dsum, none, needs_residual ? dsum : none, none, none, none};
    const tensor::ReadScope read({saved[1]});
    const auto [dx, dweight, dbias] = backward_rows(dy, dsum, saved[0], saved[1].contiguous(), saved[2], saved[3],
                                                    {needs_x || needs_residual, needs_weight, needs_bias});
    return {dx, dweight, needs_residual ? dx : none, dbias, none, none};
  }
};

variable_list run(Kind kind, const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                  const at::Tensor& bias, double epsilon) {
  check(x, residual, weight, bias);
  const auto same = [&](const at::Tensor& t) { return t.defined() ? t.to(x.scalar_type()) : t; };
  if (has_kernel(x))
    return Norm::apply(x, same(weight), optional(same(residual)), optional(same(bias)), epsilon, kind == Kind::Layer);
  const auto sum = residual.defined() ? x + residual : x;
  auto y =
      kind == Kind::Layer ? layer_norm_reference(sum, weight, bias, epsilon) : rms_norm_reference(sum, weight, epsilon);
  return residual.defined() ? variable_list{sum, y} : variable_list{y};
}

}  // namespace

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const auto wide = x.to(wide_type(x));
  const auto normed = wide * at::rsqrt(wide.square().mean(-1, true) + epsilon);
  return (normed * weight.to(wide.scalar_type())).to(x.scalar_type());
}

at::Tensor layer_norm_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  const auto type = wide_type(x);
  const auto wide = x.to(type);  // once: its gradient is then rounded once
  const auto centred = wide - wide.mean(-1, true);
  const auto normed = centred * at::rsqrt(centred.square().mean(-1, true) + epsilon) * weight.to(type);
  return (bias.defined() ? normed + bias.to(type) : normed).to(x.scalar_type());
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return run(Kind::Rms, x, {}, weight, {}, epsilon)[0];
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  return run(Kind::Layer, x, {}, weight, bias, epsilon)[0];
}

std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                               const at::Tensor& weight, double epsilon) {
  auto outputs = run(Kind::Rms, x, residual, weight, {}, epsilon);
  return {outputs[0], outputs[1]};
}

std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& residual,
                                                 const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  auto outputs = run(Kind::Layer, x, residual, weight, bias, epsilon);
  return {outputs[0], outputs[1]};
}

}  // namespace colossal::ops
