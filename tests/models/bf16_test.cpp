// Compares every family in bf16 with itself in fp64, from the same weights. This shows that no part computes in another
// dtype than the model's, or with too few digits.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "models/hidden_states.h"

namespace colossal::models::bf16_test {
namespace {

constexpr int64_t kTokens = 40;

/// Returns the logits of two rows of tokens, for weights that bf16 represents exactly.
at::Tensor logits_in(at::ScalarType dtype, const ModelShape& shape) {
  nn::Parameters parameters({}, {.dtype = dtype});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(shape, layers);
  uint64_t seed = 1;
  for (nn::Parameter& p : parameters) {
    const at::Tensor noise =
        at::randn(p.value.sizes(), at::detail::createCPUGenerator(seed++), at::TensorOptions(at::kDouble));
    // norms and biases start at 1 or 0, which bf16 represents exactly; the noise makes them differ
    const at::Tensor begin = p.value.dim() == 1 ? p.value.detach().to(at::kDouble) : at::zeros_like(noise);
    p.value.detach().copy_((begin + 0.02 * noise).to(at::kBFloat16));
  }
  const auto ids = at::TensorOptions(at::kLong);
  const at::Tensor tokens = at::randint(0, shape.vocabulary, {2, kTokens}, at::detail::createCPUGenerator(99), ids);
  const nn::ForwardContext step{.positions = at::arange(kTokens, ids).expand({2, kTokens})};
  const at::Tensor logits = model.head->logits(hidden_states(model, tokens, step), step);
  EXPECT_EQ(logits.scalar_type(), dtype) << shape.architecture->name;
  return logits.detach().to(at::kDouble);
}

// A block's tensor is rounded at the ends of its norms, products, heads, sums and activations, about 8 times. The
// hidden state adds up the roundings of all blocks. Each rounding changes a number by at most 2^-9 of it.
TEST(Bf16, EqualsFp64WithinRoundingForAllFamilies) {
  const auto preset = [](const char* name, const std::vector<std::string>& keys = {}) {
    return built_in().resolve({.name = name, .hidden = 64, .layers = 2, .own = own_keys(keys)});
  };
  for (const ModelShape& shape :
       {preset("gpt2-tiny"), preset("pythia-tiny"), preset("gptj-tiny"), preset("falcon-tiny"),
        preset("falcon-tiny", {"alibi=true"}), preset("opt-tiny", {"norm_first=false", "word_features=32"}),
        preset("bloom-tiny"), preset("palm-tiny"),
        preset("llama-tiny", {"rope_type=dynamic", "rope_factor=4", "rope_original_positions=16"}),
        preset("qwen2.5-tiny"), preset("qwen3-tiny"), preset("gemma2-tiny"), preset("phi3-tiny")}) {
    const at::Tensor exact = logits_in(at::kDouble, shape), rounded = logits_in(at::kBFloat16, shape);
    const double roundings = 8 * static_cast<double>(shape.layers) + 4;
    EXPECT_LT((rounded - exact).abs().max().item<double>(), roundings * 0x1p-9 * exact.abs().max().item<double>())
        << shape.architecture->name;
  }
}

}  // namespace
}  // namespace colossal::models::bf16_test
