#include "colossal/ops/norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/parallel.h"
#include "colossal/tensor/apply_function.h"
#include "colossal/tensor/moved_bytes.h"
#include "colossal/tensor/read_scope.h"
#include "colossal/tensor/whole_operator.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

enum class Kind { Rms, Layer };

constexpr int64_t kNormGrain = 8192;

int64_t grain_rows(int64_t columns) { return std::max<int64_t>(kNormGrain / std::max<int64_t>(columns, 1), 1); }

void check(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  require(x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1), "norm",
          "weight must have one entry per column of the input: got ", weight.sizes(), " for input ", x.sizes());
  require(!bias.defined() || bias.sizes() == weight.sizes(), "norm", "bias must be as long as weight ", weight.sizes(),
          ": got ", bias.defined() ? bias.sizes() : at::IntArrayRef());
}

// Returns {y, mean, scale}; mean is undefined for RMSNorm.
std::array<at::Tensor, 3> forward_rows(Kind kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                       double epsilon, double offset) {
  const int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.numel() / columns;
  const auto statistics = x.options().dtype(wide_type(x)).requires_grad(false);
  auto y = at::empty(x.sizes(), x.options());
  auto mean = kind == Kind::Layer ? at::empty({rows}, statistics) : at::Tensor(), scale = at::empty({rows}, statistics);
  const tensor::KernelBytes bytes({x, weight, bias}, {y, mean, scale});
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    const NormForward<T> task{columns,           pointer<T>(x),           pointer<T>(weight),
                              pointer<T>(bias),  pointer<T>(y),           pointer<W>(mean),
                              pointer<W>(scale), static_cast<W>(epsilon), static_cast<W>(offset)};
    const auto& kernel = kernels<T>();
    parallel_for(0, rows, grain_rows(columns), [&](int64_t from, int64_t to) { kernel.norm_forward(task, from, to); });
  });
  return {y, mean, scale};
}

struct Wanted {
  bool x, weight, bias;
};

// Returns {dx, dweight, dbias}. Each chunk sums the weight's gradient over its own rows first.
std::array<at::Tensor, 3> backward_rows(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                        const at::Tensor& mean, const at::Tensor& scale, double offset, Wanted wanted) {
  const int64_t columns = x.size(-1), rows = columns == 0 ? 0 : x.numel() / columns, grain = grain_rows(columns);
  auto dx = wanted.x ? at::empty(x.sizes(), x.options()) : at::Tensor();
  const auto partial = [&](bool is_wanted) {
    return is_wanted ? at::zeros({parallel_chunks(rows, grain), columns}, scale.options()) : at::Tensor();
  };
  const tensor::KernelBytes bytes({dy, x, weight, mean, scale},
                                  {dx, wanted.weight ? weight : at::Tensor(), wanted.bias ? weight : at::Tensor()});
  const auto dweight = partial(wanted.weight), dbias = partial(wanted.bias);
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    using W = WideOf<T>;
    const NormBackward<T> task{columns,          pointer<T>(dy),    pointer<T>(x),  pointer<T>(weight),
                               pointer<W>(mean), pointer<W>(scale), pointer<T>(dx), static_cast<W>(offset)};
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

using Optional = std::optional<at::Tensor>;  // used because an argument of a Function must not be an undefined tensor

Optional optional(const at::Tensor& t) { return t.defined() ? Optional(t) : std::nullopt; }
at::Tensor dense(const at::Tensor& t) { return t.defined() ? t.contiguous() : t; }

// One autograd node for both operators.
struct Norm : Function<Norm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const Optional& bias, double epsilon, double offset, bool centred) {
    const tensor::ReadScope read({weight, bias.value_or(at::Tensor())});
    const at::Tensor rows = x.contiguous();
    const auto [y, mean, scale] = forward_rows(centred ? Kind::Layer : Kind::Rms, rows, weight.contiguous(),
                                               dense(bias.value_or(at::Tensor())), epsilon, offset);
    if (!context) return y;
    context->save_for_backward({rows, weight, mean, scale});
    context->saved_data["bias"] = bias.has_value();
    context->saved_data["offset"] = offset;
    return y;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const bool needs_bias = context->saved_data["bias"].toBool() && context->needs_input_grad(2);
    const tensor::ReadScope read({saved[1]});
    const auto [dx, dweight, dbias] =
        backward_rows(dense(gradients[0]), saved[0], saved[1].contiguous(), saved[2], saved[3],
                      context->saved_data["offset"].toDouble(),
                      {context->needs_input_grad(0), context->needs_input_grad(1), needs_bias});
    const at::Tensor none;
    return {dx, dweight, dbias, none, none, none};
  }
};

// Runs LibTorch's fused kernels of accelerators, which LibTorch differentiates.
at::Tensor library_norm(Kind kind, const at::Tensor& x, const at::Tensor& weight, const Optional& bias,
                        double epsilon) {
  if (kind == Kind::Layer) return std::get<0>(at::native_layer_norm(x, weight.sizes(), weight, bias, epsilon));
  return std::get<0>(at::_fused_rms_norm(x, weight.sizes(), weight, epsilon));
}

at::Tensor with_offset(const at::Tensor& weight, double offset, at::ScalarType type) {
  return offset == 0 ? weight.to(type) : weight.to(type) + offset;
}

at::Tensor run(Kind kind, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
               double offset) {
  check(x, weight, bias);
  if (tensor::OperatorRecorder* recorder = tensor::operator_recorder())
    return recorder->record(
        {kind == Kind::Layer ? "layer_norm" : "rms_norm", "...C,C,C->...C", {x, weight, bias}, [=](const auto& in) {
           return run(kind, in[0], in[1], in[2], epsilon, offset);
         }});
  const auto in = [](const at::Tensor& t, at::ScalarType type) { return t.defined() ? t.to(type) : t; };
  const at::ScalarType type = x.scalar_type();
  // Meta has no library's norm. Ours has the same results and keeps the same tensors for backward.
  if (has_kernel(x) || (x.is_meta() && is_for_accelerator(x)))
    return tensor::apply_function<Norm>(x, in(weight, type), optional(in(bias, type)), epsilon, offset,
                                        kind == Kind::Layer);
  if (is_accelerator(x)) {
    // With an offset x and weight are widened: the library requires one dtype for both, and a narrow one would round
    // offset + weight.
    const at::ScalarType wide = offset == 0 ? type : wide_type(x);
    const at::Tensor factor = with_offset(weight, offset, wide);
    return library_norm(kind, in(x, wide), factor, optional(in(bias, wide)), epsilon).to(type);
  }
  return kind == Kind::Layer ? layer_norm_reference(x, weight, bias, epsilon, offset)
                             : rms_norm_reference(x, weight, epsilon, offset);
}

}  // namespace

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon, double offset) {
  const auto wide = x.to(wide_type(x));
  const auto normed = wide * at::rsqrt(wide.square().mean(-1, true) + epsilon);
  return (normed * with_offset(weight, offset, wide.scalar_type())).to(x.scalar_type());
}

at::Tensor layer_norm_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                                double offset) {
  const auto type = wide_type(x);
  const auto wide = x.to(type);  // widened once, so its gradient is rounded once
  const auto centred = wide - wide.mean(-1, true);
  const auto factor = with_offset(weight, offset, type);
  const auto normed = centred * at::rsqrt(centred.square().mean(-1, true) + epsilon) * factor;
  return (bias.defined() ? normed + bias.to(type) : normed).to(x.scalar_type());
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, double offset) {
  return run(Kind::Rms, x, weight, {}, epsilon, offset);
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                      double offset) {
  return run(Kind::Layer, x, weight, bias, epsilon, offset);
}

// Norms of rows whose features are split over ranks. They use ATen operators, because the work is one pass over an
// activation that the layout has already divided by the number of ranks.
namespace {

/// Returns the row sums of a and, if given, of b, over all ranks: [1 or 2, rows, 1] in fp64. fp64 allows the variance
/// E[x^2] - E[x]^2 with one message instead of two: in fp32 that difference would lose its digits.
at::Tensor summed(const at::Tensor& a, const at::Tensor& b, RankReduction& reduction) {
  const auto sum = [](const at::Tensor& t) { return t.sum(-1, false, at::kDouble); };
  at::Tensor sums = b.defined() ? at::stack({sum(a), sum(b)}) : sum(a).unsqueeze(0);
  reduction.sum(sums);
  return sums.unsqueeze(-1);
}

struct SplitNorm : Function<SplitNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias, double epsilon, double offset, bool centred,
                            int64_t width, RankReduction* reduction) {
    const auto type = wide_type(x);
    const auto rows = x.reshape({-1, x.size(-1)}).to(type);
    const double features = static_cast<double>(width);
    at::Tensor mean, variance;
    if (centred) {
      const auto moments = summed(rows, rows.square(), *reduction) / features;
      mean = moments[0];
      variance = (moments[1] - mean.square()).clamp_min(0);
    } else {
      variance = summed(rows.square(), {}, *reduction)[0] / features;
    }
    const auto scale = (variance + epsilon).rsqrt().to(type);
    const auto shift = mean.defined() ? mean.to(type) : at::Tensor();
    const auto normed = (shift.defined() ? rows - shift : rows) * scale;
    const auto factor = weight.to(type) + offset;
    const auto y = bias ? at::addcmul(bias->to(type), normed, factor) : normed * factor;
    context->save_for_backward({x, weight, shift, scale});
    context->saved_data["width"] = features;
    context->saved_data["reduction"] = reinterpret_cast<int64_t>(reduction);
    context->saved_data["offset"] = offset;
    context->saved_data["centred"] = centred;
    context->saved_data["bias"] = bias.has_value();
    return y.to(x.scalar_type()).view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &shift = saved[2], &scale = saved[3];
    const double features = context->saved_data["width"].toDouble();
    auto& reduction = *reinterpret_cast<RankReduction*>(context->saved_data["reduction"].toInt());
    const bool centred = context->saved_data["centred"].toBool(), biased = context->saved_data["bias"].toBool();
    const auto type = scale.scalar_type();
    const auto dy = gradients[0].reshape({-1, x.size(-1)}).to(type), rows = x.reshape(dy.sizes()).to(type);
    const double offset = context->saved_data["offset"].toDouble();
    const auto normed = (centred ? rows - shift : rows) * scale, g = dy * (weight.to(type) + offset);
    const auto means = (centred ? summed(g * normed, g, reduction) : summed(g * normed, {}, reduction)) / features;
    auto dx = g - normed * means[0].to(type);
    if (centred) dx -= means[1].to(type);
    const auto total = [&](const at::Tensor& t) { return t.sum(0).to(weight.scalar_type()); };
    const at::Tensor none;
    return {(dx * scale).to(x.scalar_type()).view(x.sizes()),
            total(dy * normed),
            biased ? total(dy) : none,
            none,
            none,
            none,
            none,
            none};
  }
};

void check(const at::Tensor& x, const at::Tensor& weight, int64_t width) {
  require(x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1) && width >= x.size(-1), "norm",
          "weight must have one entry per local column, at most the width of the row: got ", weight.sizes(),
          " for input ", x.sizes(), ", width ", width);
}

}  // namespace

at::Tensor split_rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, int64_t width,
                          RankReduction& reduction, double offset) {
  check(x, weight, width);
  return SplitNorm::apply(x, weight, std::optional<at::Tensor>(), epsilon, offset, false, width, &reduction);
}

at::Tensor split_layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                            int64_t width, RankReduction& reduction, double offset) {
  check(x, weight, width);
  require(!bias.defined() || bias.sizes() == weight.sizes(), "norm", "bias must be as long as weight ", weight.sizes());
  const auto given = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  return SplitNorm::apply(x, weight, given, epsilon, offset, true, width, &reduction);
}

}  // namespace colossal::ops
