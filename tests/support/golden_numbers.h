// Input, weights and sums of the golden values of ../shared/reference/folding.md, section (c).
//
//   nn::Parameters parameters({}, {.dtype = at::kDouble});
//   nn::SerialLayers make(parameters);
//   const nn::Transition layer(make, "layer", 6, 4);
//   test::set_golden(parameters, {"layer.layer_norm", "layer.linear_1", "layer.linear_2"});
//   const at::Tensor z = test::golden_input(.37, {1, 5, 5, 6});
//   EXPECT_NEAR(test::golden_sum(layer.forward(z, {})), ..., 1e-12);
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <string>
#include <vector>

#include "colossal/nn/parameter.h"

namespace colossal::test {

inline at::Tensor golden_count(int64_t elements) { return at::arange(elements, at::kDouble); }

/// Returns cos(a n), n = 0, 1, .. of the elements in their order; it requires a gradient.
inline at::Tensor golden_input(double a, const std::vector<int64_t>& sizes) {
  int64_t elements = 1;
  for (const int64_t size : sizes) elements *= size;
  return golden_count(elements).mul(a).cos().view(sizes).requires_grad_();
}

/// Returns the sum of x_n sin(n + 1).
inline at::Tensor golden_loss(const at::Tensor& x) { return x.flatten().dot((golden_count(x.numel()) + 1).sin()); }
inline double golden_sum(const at::Tensor& x) { return golden_loss(x).item<double>(); }

/// Sets the weight and then the bias, if there is one, of each of these layers, tensor by tensor: element n of the t-th
/// one is spread sin(.7 n + t), plus 1 in weights of norms.
inline void set_golden(nn::Parameters& parameters, const std::vector<std::string>& layers, double spread = 0.3) {
  const at::NoGradGuard no_grad;
  int64_t t = 0;
  for (const std::string& layer : layers)
    for (const char* part : {".weight", ".bias"})
      for (nn::Parameter& parameter : parameters) {
        if (parameter.name != layer + part) continue;
        at::Tensor values = golden_count(parameter.value.numel()).mul(0.7).add(++t).sin().mul(spread);
        if (layer.find("norm") != std::string::npos && part == std::string(".weight")) values.add_(1);
        parameter.value.copy_(values.view(parameter.value.sizes()));
      }
}

}  // namespace colossal::test
