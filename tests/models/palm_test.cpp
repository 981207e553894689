// Compares PaLM with the formulas of its paper written in ATen, because there is no other implementation to compare
// with.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "support/tolerance.h"

namespace colossal::models::palm_test {
namespace {

constexpr int64_t kSequence = 7, kTerms = 4096;

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

using Weights = std::map<std::string, at::Tensor>;

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) {
  return at::layer_norm(x, {x.size(-1)}, weight, {}, 1e-5);
}

/// Returns x [B, S, N, D] rotated in pairs (i, i + D/2).
at::Tensor turned(const at::Tensor& x) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor frequencies = at::pow(10000.0, at::arange(half, at::kDouble) / half).reciprocal();
  const at::Tensor angle = at::outer(at::arange(x.size(1), at::kDouble), frequencies).unsqueeze(1);
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * angle.cos() - halves[1] * angle.sin(), halves[1] * angle.cos() + halves[0] * angle.sin()},
                 -1);
}

/// Returns y = x + MLP(LayerNorm(x)) + Attention(LayerNorm(x)), with one k and one v for all heads.
at::Tensor block(const at::Tensor& x, const ModelShape& s, const Weights& w, const std::string& name) {
  const at::Tensor read = norm(x, w.at(name + "norm_1.weight"));
  const auto parts = at::matmul(read, w.at(name + "attention.qkv.weight").t())
                         .split_with_sizes({s.heads * s.head_dim, s.head_dim, s.head_dim}, -1);
  const at::Tensor q = turned(parts[0].unflatten(-1, {s.heads, s.head_dim})).transpose(1, 2);
  const at::Tensor k = turned(parts[1].unsqueeze(2)).transpose(1, 2), v = parts[2].unsqueeze(1);
  const at::Tensor later = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(s.head_dim));
  const at::Tensor seen = at::matmul(scores.masked_fill(later, -INFINITY).softmax(-1), v).transpose(1, 2).flatten(2);
  const auto halves = at::matmul(read, w.at(name + "mlp.gate_up.weight").t()).chunk(2, -1);
  const at::Tensor fed = at::matmul(halves[0] * halves[0].sigmoid() * halves[1], w.at(name + "mlp.down.weight").t());
  return x + at::matmul(seen, w.at(name + "attention.out.weight").t()) + fed;
}

TEST(Palm, EqualsFormulasOfItsPaper) {
  const ModelShape s =
      built_in().resolve({.name = "palm-tiny", .hidden = 24, .layers = 2, .heads = 3, .kv_heads = 1, .ffn = 20}, 31);
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers layers(parameters);
  Model model = make_model(s, layers);
  Weights weights;
  uint64_t seed = 1;
  for (nn::Parameter& p : parameters) {
    EXPECT_EQ(p.name.find("bias"), std::string::npos) << "no biases in linear layers or norms";
    p.value.detach().copy_(random(p.value.sizes(), seed++) * 0.3 + 0.1);
    weights[p.name] = p.value.detach().clone().requires_grad_();
  }
  EXPECT_EQ(weights.size(), 2U + 2 * 5) << "one norm a block, one table for both ends";
  const at::Tensor ids = at::arange(2 * kSequence, at::kLong).remainder(s.vocabulary).view({2, kSequence});
  const at::Tensor labels = (ids * 5 + 1).remainder(s.vocabulary);
  const nn::ForwardContext step{.positions = at::arange(kSequence, at::kLong).expand({2, kSequence}).contiguous()};

  at::Tensor x = weights.at("embedding.weight").index_select(0, ids.flatten()).view({2, kSequence, s.hidden});
  for (int64_t i = 0; i < s.layers; ++i) x = block(x, s, weights, concat("blocks.", i, "."));
  const at::Tensor logits = at::matmul(norm(x, weights.at("norm.weight")), weights.at("embedding.weight").t()) /
                            std::sqrt(static_cast<double>(s.hidden));
  const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), labels.flatten(), {}, at::Reduction::Sum);
  loss.backward();

  at::Tensor h = model.embed(nn::token_batch(ids), step);
  for (const Block& each : model.blocks) h = each(h, step);
  h = model.norm(h, step);
  test::expect_close(model.head->logits(h, step).detach(), logits.detach(), kTerms, "logits");
  const at::Tensor ours = model.head->loss_sum(h, labels, step);
  test::expect_close(ours.detach(), loss.detach(), kTerms, "loss");
  ours.backward();
  for (nn::Parameter& p : parameters)
    test::expect_close(p.value.grad(), weights.at(p.name).grad(), kTerms, "gradient of " + p.name);
}

// Section 5 of the paper: embedding rows start with a standard deviation of 1, unlike other weights.
TEST(Palm, InitializesEmbeddingWithUnitDeviation) {
  nn::Parameters parameters({}, {});
  nn::SerialLayers layers(parameters);
  make_model(built_in().resolve({.name = "palm-tiny"}), layers);
  const double deviation = parameters.at("embedding.weight").value.detach().std().item<double>();
  EXPECT_NEAR(deviation, 1, 0.05);  // 257 x 128 normal numbers; the error is 0.004 in one of three draws
}

}  // namespace
}  // namespace colossal::models::palm_test
