#include "colossal/nn/few_outputs.h"

#include <ATen/ATen.h>

#include <vector>

#include "colossal/nn/convolution.h"
#include "colossal/nn/linear.h"

namespace colossal::nn {

at::Tensor few_outputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, bool by_row) {
  const at::Tensor own = weight.to(x.scalar_type()), added = bias.defined() ? bias.to(x.scalar_type()) : bias;
  if (!by_row) return linear(x, own, added);
  std::vector<at::Tensor> outputs;
  for (int64_t i = 0; i < own.size(0); ++i) outputs.push_back((x * own[i]).sum(-1));
  const at::Tensor y = at::stack(outputs, -1);
  return added.defined() ? y + added : y;
}

at::Tensor few_outputs(const Product& product, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const Pictures& pictures) {
  const auto type = x.scalar_type();
  return convolved(product, x, weight.to(type), bias.defined() ? bias.to(type) : bias, weight.size(0), pictures);
}

}  // namespace colossal::nn
