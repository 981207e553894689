#include "colossal/auto_parallel/block_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace colossal::automatic {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

/// Returns the dimensions that batch norm sums over: all but the channels.
std::vector<int64_t> summed_dims(const at::Tensor& x) {
  std::vector<int64_t> dims{0};
  for (int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
  return dims;
}

/// Returns a vector of channels in a shape that broadcasts over `x`.
at::Tensor over_channels(const at::Tensor& vector, const at::Tensor& x) {
  std::vector<int64_t> sizes(static_cast<size_t>(x.dim()), 1);
  sizes[1] = vector.size(0);
  return vector.view(sizes);
}

at::ScalarType statistics_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Returns the sums of both vectors over all groups.
at::Tensor summed_pair(const at::Tensor& first, const at::Tensor& second, const std::vector<int64_t>& addresses) {
  at::Tensor sums = at::stack({first, second});
  for (const int64_t address : addresses)
    reinterpret_cast<comm::Group*>(address)->all_reduce(sums, comm::Reduce::Sum).wait();
  return sums;
}

struct BatchNorm : Function<BatchNorm> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& shift, double epsilon,
                               const std::vector<int64_t>& groups) {
    const at::ScalarType dtype = statistics_dtype(x);
    double count = static_cast<double>(x.numel() / x.size(1));
    for (const int64_t address : groups) count *= reinterpret_cast<comm::Group*>(address)->size();
    const at::Tensor wide = x.to(dtype), about = shift.to(dtype);
    const at::Tensor apart = wide - over_channels(about, x);
    const at::Tensor sums = summed_pair(apart.sum(summed_dims(x)), apart.square().sum(summed_dims(x)), groups) / count;
    const at::Tensor mean = about + sums[0];
    const at::Tensor variance = (sums[1] - sums[0].square()).clamp_min(0);
    const at::Tensor inverse = (variance + epsilon).rsqrt();
    at::Tensor y = (wide - over_channels(mean, x)) * over_channels(inverse, x);
    if (weight.defined()) y = y * over_channels(weight.to(dtype), x);
    if (bias.defined()) y = y + over_channels(bias.to(dtype), x);
    context->save_for_backward({x, weight, mean, inverse});
    context->saved_data["groups"] = groups;
    context->saved_data["count"] = count;
    context->saved_data["has_bias"] = bias.defined();
    const at::Tensor unbiased = variance * (count / std::max(count - 1, 1.0));
    context->mark_non_differentiable({mean, unbiased});
    return {y.to(x.scalar_type()), mean, unbiased};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const double count = context->saved_data["count"].toDouble();
    const at::Tensor dy = gradients[0].to(mean.scalar_type());
    const at::Tensor normal = (x.to(mean.scalar_type()) - over_channels(mean, x)) * over_channels(inverse, x);
    const at::Tensor of_bias = dy.sum(summed_dims(x)), of_weight = (dy * normal).sum(summed_dims(x));
    const at::Tensor means = summed_pair(of_bias, of_weight, context->saved_data["groups"].toIntVector()) / count;
    at::Tensor scale = inverse;
    if (weight.defined()) scale = scale * weight.to(scale.scalar_type());
    const at::Tensor dx =
        over_channels(scale, x) * (dy - over_channels(means[0], x) - normal * over_channels(means[1], x));
    const auto of = [](const at::Tensor& gradient, at::ScalarType dtype) { return gradient.to(dtype); };
    return {of(dx, x.scalar_type()),
            weight.defined() ? of(of_weight, weight.scalar_type()) : at::Tensor(),
            context->saved_data["has_bias"].toBool() ? of(of_bias, x.scalar_type()) : at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

NormedBlock batch_norm_of_block(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                                const at::Tensor& shift, double epsilon, const std::vector<comm::Group*>& groups) {
  std::vector<int64_t> addresses;
  for (comm::Group* group : groups) addresses.push_back(reinterpret_cast<int64_t>(group));
  const at::Tensor about = shift.defined() ? shift.detach() : at::zeros({x.size(1)}, x.options());
  const variable_list made = BatchNorm::apply(x, weight, bias, about, epsilon, addresses);
  return {made[0], made[1], made[2]};
}

}  // namespace colossal::automatic
