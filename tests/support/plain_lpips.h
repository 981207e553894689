// A plain second implementation of LPIPS, of pictures [B, 3, H, W] in fp64, with ATen's operators and autograd.
//
//   const test::NamedTensors weights = test::made_lpips();                 // of a narrow network
//   test::write_lpips(folder, weights);
//   const at::Tensor distances = test::plain_lpips(weights, x, y);         // [B]
#pragma once
#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/checkpoint/safetensors.h"

namespace colossal::test {

using NamedTensors = std::map<std::string, at::Tensor>;

/// The numbers of VGG16's convolutions in torchvision, of each of the five levels that LPIPS compares.
inline const std::vector<std::vector<int>>& vgg_numbers() {
  static const std::vector<std::vector<int>> numbers{{0, 2}, {5, 7}, {10, 12, 14}, {17, 19, 21}, {24, 26, 28}};
  return numbers;
}

/// Returns waves as weights of a network with these features at the five levels. Each pixel has features that are far
/// from 0, because the gradient of LPIPS is steep where they are small.
inline NamedTensors made_lpips(const std::vector<int64_t>& features = {4, 5, 6, 7, 4}) {
  NamedTensors weights;
  auto waves = [count = 0.0](const std::vector<int64_t>& sizes, double scale) mutable {
    return ((at::arange(c10::multiply_integers(sizes), at::kDouble) * .7 + ++count).sin() * scale).view(sizes);
  };
  int64_t in = 3;
  for (size_t level = 0; level < features.size(); ++level) {
    const int64_t out = features[level];
    for (const int number : vgg_numbers()[level]) {
      weights[concat("features.", number, ".weight")] = waves({out, in, 3, 3}, .3);
      weights[concat("features.", number, ".bias")] = waves({out}, .1) + .5;
      in = out;
    }
    weights[concat("lin", level, ".model.1.weight")] = waves({1, out, 1, 1}, 1).abs();
  }
  return weights;
}

/// Writes the weights as two files, as a user has them.
inline void write_lpips(const std::string& folder, const NamedTensors& weights) {
  std::filesystem::create_directories(folder);
  NamedTensors network, layers;
  for (const auto& [name, value] : weights) (name.starts_with("lin") ? layers : network)[name] = value;
  checkpoint::write_safetensors(folder + "/vgg16.safetensors", network);
  checkpoint::write_safetensors(folder + "/lpips.safetensors", layers);
}

inline at::Tensor plain_lpips(const NamedTensors& weights, at::Tensor x, at::Tensor y) {
  const auto column = [](std::vector<double> values) { return at::tensor(values, at::kDouble).view({1, 3, 1, 1}); };
  const at::Tensor shift = column({-.030, -.088, -.188}), scale = column({.458, .448, .450});
  x = (x - shift) / scale, y = (y - shift) / scale;
  at::Tensor sum;
  for (size_t level = 0; level < vgg_numbers().size(); ++level) {
    for (at::Tensor* picture : {&x, &y}) {
      if (level > 0) *picture = at::max_pool2d(*picture, {2, 2});
      for (const int number : vgg_numbers()[level])
        *picture = at::relu(at::conv2d(*picture, weights.at(concat("features.", number, ".weight")),
                                       weights.at(concat("features.", number, ".bias")), 1, at::IntArrayRef{1, 1}));
    }
    const auto unit = [](const at::Tensor& t) {
      return t / (t.square().sum(1, true).clamp_min(1e-300).sqrt() + 1e-10);
    };
    const at::Tensor lin = weights.at(concat("lin", level, ".model.1.weight"));
    const at::Tensor distance = at::conv2d((unit(x) - unit(y)).square(), lin).mean({1, 2, 3});
    sum = sum.defined() ? sum + distance : distance;
  }
  return sum;
}

}  // namespace colossal::test
