// A plain second implementation of a discriminator of patches, of pictures [B, 3, H, W] in fp64, with ATen's operators
// and autograd.
//
//   const at::Tensor scores = test::plain_scores(parameters, images, /*depth=*/2, /*groups=*/8);
#pragma once
#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>

#include "colossal/base/error.h"

namespace colossal::test {

/// Returns the scores [B, 1, h, w] of a discriminator with parameters under our names.
inline at::Tensor plain_scores(const std::map<std::string, at::Tensor>& parameters, const at::Tensor& images,
                               int64_t depth, int64_t groups) {
  const auto convolved = [&](const at::Tensor& x, const std::string& name, int64_t stride) {
    return at::conv2d(x, parameters.at(name + ".weight"), parameters.at(name + ".bias"),
                      at::IntArrayRef{stride, stride}, at::IntArrayRef{1, 1});
  };
  at::Tensor x = at::leaky_relu(convolved(images, "input", 2), .2);
  for (int64_t i = 0; i < depth; ++i) {
    const std::string block = concat("blocks.", i, ".");
    x = convolved(x, block + "conv", i + 1 < depth ? 2 : 1);
    if (groups > 0)
      x = at::group_norm(x, groups, parameters.at(block + "norm.weight"), parameters.at(block + "norm.bias"), 1e-5);
    x = at::leaky_relu(x, .2);
  }
  return convolved(x, "head", 1);
}

}  // namespace colossal::test
