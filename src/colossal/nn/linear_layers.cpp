#include "colossal/nn/linear_layers.h"

#include <ATen/ATen.h>

#include "colossal/base/error.h"

namespace colossal::nn {

std::vector<at::Tensor> tensors_of(const std::vector<Inside>& x) {
  std::vector<at::Tensor> tensors;
  for (const Inside& one : x) tensors.push_back(one.pending ? one.pending(one.tensor) : one.tensor);
  return tensors;
}

Inside side_by_side(const Inside& first, const Inside& second) {
  const at::Tensor both = at::cat({first.tensor, second.tensor}, -1);
  if (!first.pending && !second.pending) return {both};
  // As without pending functions, gradients are dense: sums over views of one would be rounded differently.
  for (const at::Tensor& part : {first.tensor, second.tensor})
    if (part.requires_grad()) part.register_hook([](const at::Tensor& gradient) { return gradient.contiguous(); });
  const std::vector<int64_t> sizes{first.tensor.size(-1), second.tensor.size(-1)};
  return {both, [sizes, a = first.pending, b = second.pending](const at::Tensor& x) {
            const std::vector<at::Tensor> parts = x.split_with_sizes(sizes, -1);
            return at::cat(tensors_of({{parts[0], a}, {parts[1], b}}), -1);
          }};
}

std::vector<int64_t> LinearOptions::weight_sizes(int64_t out, int64_t in) const {
  std::vector<int64_t> sizes{out, in};
  sizes.insert(sizes.end(), taps.begin(), taps.end());
  return sizes;
}

at::Tensor sum_of_taps(
    const std::vector<at::Tensor>& x, const at::Tensor& weight, const at::Tensor& bias,
    const std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias)>& product) {
  require(weight.dim() > 2, "model", "a layer must have LinearOptions::taps to sum over them: got a weight of ",
          weight.sizes());
  const at::Tensor taps = weight.flatten(2);
  require(static_cast<int64_t>(x.size()) == taps.size(2), "model", "a layer of ", taps.size(2),
          " taps must get a tensor for each: got ", x.size());
  at::Tensor y;
  for (size_t tap = 0; tap < x.size(); ++tap) {
    // Products read dense rows.
    const at::Tensor part =
        product(x[tap], taps.select(2, static_cast<int64_t>(tap)).contiguous(), tap == 0 ? bias : at::Tensor());
    y = tap == 0 ? part : y + part;
  }
  return y;
}

}  // namespace colossal::nn
