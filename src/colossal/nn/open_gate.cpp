#include "colossal/nn/open_gate.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "colossal/nn/layers.h"

namespace colossal::nn {

std::unique_ptr<Dense> open_gate(Layers& make, const std::string& name, int64_t in, int64_t out, bool bias) {
  auto layer = silent_layer(make, name, in, out, bias);
  if (!bias) return layer;
  Parameters& all = make.parameters();
  const std::string& model = all.options().model;
  Parameter& start = all.at((model.empty() ? "" : model + ".") + name + ".bias");
  if (start.init.kind == Init::Kind::Ones) return layer;  // a second set of layers over the same parameters
  start.init = Init::ones();
  const at::NoGradGuard no_grad;
  if (start.value.defined() && !all.options().without_memory) all.draw(start, start.value);
  return layer;
}

std::unique_ptr<Dense> silent_layer(Layers& make, const std::string& name, int64_t in, int64_t out, bool bias) {
  return make.dense(name, in, out, {.bias = bias, .deviation = 0});
}

std::unique_ptr<Dense> normed_layer(Layers& make, const std::string& name, int64_t in, int64_t out, bool bias) {
  return make.dense(name, in, out, {.bias = bias, .deviation = 1 / std::sqrt(static_cast<double>(in))});
}

}  // namespace colossal::nn
