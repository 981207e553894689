// Norms of rows whose features are split over ranks. They use ATen operators, because the work is one pass over an
// activation that the layout has already divided by the number of ranks.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "colossal/base/error.h"
#include "colossal/ops/dispatch.h"
#include "colossal/ops/norm.h"

namespace colossal::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

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
