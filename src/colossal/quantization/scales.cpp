#include "colossal/quantization/scales.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <limits>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/quantization/gptq.h"

namespace colossal::quantization {

at::Tensor awq_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs,
                      const ops::RoundingOptions& options) {
  constexpr int kExponents = 20;
  at::Tensor best;
  double least = std::numeric_limits<double>::infinity();
  const at::Tensor mean = inputs.mean.clamp_min(1e-4 * inputs.mean.max().item<double>()).clamp_min(1e-30);
  for (int i = 0; i < kExponents; ++i) {
    at::Tensor scales = mean.pow(static_cast<double>(i) / kExponents);
    scales = scales / (scales.max() * scales.min()).sqrt();  // centred on 1, so that weights keep their size
    double error = 0;
    for (const at::Tensor& weight : weights) {
      const at::Tensor w = weight.to(at::kDouble);
      const at::Tensor near = ops::round_to_codes((w * scales).to(at::kFloat), options).values().to(at::kDouble);
      error += output_error(w, near / scales, inputs.moments);
    }
    if (error < least) least = error, best = scales;
  }
  return best.defined() ? best : at::ones_like(mean);
}

at::Tensor smoothing_scales(const std::vector<at::Tensor>& weights, const LayerInputs& inputs, double alpha) {
  at::Tensor largest = at::zeros_like(inputs.largest);
  for (const at::Tensor& weight : weights) largest = at::maximum(largest, weight.to(at::kDouble).abs().amax(0));
  const at::Tensor scales = inputs.largest.pow(alpha) / largest.pow(1 - alpha);
  return at::where(inputs.largest.gt(0).logical_and(largest.gt(0)), scales, at::ones_like(scales));
}

namespace {

nn::Parameter* find(nn::Parameters& parameters, const std::string& name) {
  for (nn::Parameter& p : parameters)
    if (p.name == name) return &p;
  return nullptr;
}

/// Returns the fold of a norm in front of the layers `readers`.
Fold norm_fold(const std::string& name, nn::Parameter& weight, nn::Parameter* bias, std::vector<std::string> readers) {
  const auto divide = [&weight, bias](const at::Tensor& scales) {
    // a norm that multiplies by 1 + w initialises w with zeros
    const double offset = weight.init.kind == nn::Init::Kind::Zeros ? 1 : 0;
    weight.value.copy_((weight.value.to(at::kDouble) + offset) / scales - offset);
    if (bias) bias->value.copy_(bias->value.to(at::kDouble) / scales);
  };
  return {name, std::move(readers), true, divide};
}

/// Returns the fold of the rows from `first` on of a linear layer in front of another one.
Fold rows_fold(const std::string& name, nn::Parameter& weight, nn::Parameter* bias, int64_t first,
               const std::string& reader) {
  const auto divide = [&weight, bias, first](const at::Tensor& scales) {
    const at::Tensor rows = weight.value.slice(0, first);
    rows.copy_(rows.to(at::kDouble) / scales.unsqueeze(1));
    if (!bias) return;
    const at::Tensor of_rows = bias->value.slice(0, first);
    of_rows.copy_(of_rows.to(at::kDouble) / scales);
  };
  return {name, {reader}, false, divide};
}

}  // namespace

std::vector<Fold> folds_of(const models::ModelShape& shape, nn::Parameters& parameters, int64_t block) {
  const std::string at = concat("blocks.", block, ".");
  const auto weight = [&](const std::string& name) { return find(parameters, at + name + ".weight"); };
  const auto bias = [&](const std::string& name) { return find(parameters, at + name + ".bias"); };
  nn::Parameter *norm_1 = weight("norm_1"), *norm_2 = weight("norm_2"), *qkv = weight("attention.qkv"),
                *out = weight("attention.out"), *gate_up = weight("mlp.gate_up"), *down = weight("mlp.down");
  nn::Parameter* up = gate_up ? gate_up : weight("mlp.up");
  std::vector<Fold> folds;
  if (norm_1 && qkv) {
    std::vector<std::string> readers{qkv->name};
    if (!norm_2 && up) readers.push_back(up->name);
    folds.push_back(norm_fold(at + "norm_1", *norm_1, bias("norm_1"), readers));
  }
  if (qkv && out && shape.kv_heads == shape.heads && qkv->value.size(0) == 3 * out->value.size(1))
    folds.push_back(rows_fold(at + "attention.qkv", *qkv, bias("attention.qkv"), 2 * out->value.size(1), out->name));
  if (norm_2 && up) folds.push_back(norm_fold(at + "norm_2", *norm_2, bias("norm_2"), {up->name}));
  if (gate_up && down && gate_up->value.size(0) == 2 * down->value.size(1))
    folds.push_back(rows_fold(at + "mlp.gate_up", *gate_up, bias("mlp.gate_up"), down->value.size(1), down->name));
  return folds;
}

void apply(const Fold& fold, nn::Parameters& parameters, const at::Tensor& scales) {
  const at::NoGradGuard no_grad;
  fold.divide(scales);
  for (const std::string& name : fold.consumers) {
    const at::Tensor weight = parameters.at(name).value;
    weight.copy_(weight.to(at::kDouble) * scales);
  }
}

bool changes_nothing(const Fold& fold, nn::Parameters& parameters, const std::function<at::Tensor()>& output) {
  const at::NoGradGuard no_grad;
  const int64_t features = parameters.at(fold.consumers.front()).value.size(1);
  const at::Tensor scales = at::arange(features).remainder(3).to(at::kDouble).exp2();
  const at::Tensor before = output();
  apply(fold, parameters, scales);
  const at::Tensor after = output();
  apply(fold, parameters, scales.reciprocal());
  const double distance = (after - before).to(at::kDouble).norm().item<double>();
  return distance <= 1e-3 * before.to(at::kDouble).norm().item<double>();
}

}  // namespace colossal::quantization
