// A module that is unaware of chunks, and a store of its parameters.
#pragma once
#include <torch/nn.h>

#include <memory>
#include <vector>

#include "colossal/memory/chunk_store.h"

namespace colossal::memory {

inline constexpr int64_t kWidth = 16;

/// Five layers of 16 x 16. The third has no bias, the last has the weight of the first, and the fourth is never used.
struct Foreign : torch::nn::Module {
  Foreign() {
    for (int i = 0; i < 5; ++i)
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(i != 2))));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    double phase = 0;  // no generator is used, because several ranks make modules at once
    for (at::Tensor& p : parameters())
      p.copy_(at::arange(p.numel(), at::kDouble).add(++phase).mul(1.7).sin().mul(0.3).view(p.sizes()));
  }
  at::Tensor forward(at::Tensor x) {
    for (const int i : {0, 1, 2, 4}) x = torch::tanh(layers[i]->forward(x));
    return torch::linear(x, layers[0]->weight).square().sum();
  }
  std::vector<torch::nn::Linear> layers;
};

/// Returns the module's parameters as a store takes them.
inline std::unique_ptr<nn::Parameters> adopt(Foreign& module, comm::Mesh& mesh) {
  auto parameters = std::make_unique<nn::Parameters>(mesh.coordinates(), nn::Parameters::Options{.dtype = at::kDouble});
  for (const auto& p : module.named_parameters()) parameters->adopt(p.key(), p.value(), true);
  return parameters;
}

inline at::Tensor input() { return at::linspace(-1, 1, 3 * kWidth, at::kDouble).view({3, kWidth}); }

inline ChunkOptions options_of(int zero, int64_t capacity = 300) {
  ChunkOptions options;
  options.sharing = Sharing::of_stage(zero);
  options.capacity = capacity;
  return options;
}

}  // namespace colossal::memory
