// Latent attention on one process against a plain formula in fp64: outputs and all gradients. Decoding with a cache
// equals one pass over all tokens.
#include "colossal/nn/latent_heads.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/base/seed.h"
#include "colossal/nn/attention.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/attention_shape.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/head_projections.h"
#include "colossal/nn/kv_cache.h"
#include "colossal/nn/paged_cache.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/rotary.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::nn::latent_heads_test {
namespace {

constexpr AttentionShape kShape{.hidden = 20, .heads = 3, .kv_heads = 3, .head_dim = 10, .v_head_dim = 5};
constexpr int64_t kBatch = 2, kSequence = 9, kRotated = 4, kKvRank = 7;
constexpr double kTheta = 100;
// Rounding of products over hidden features, latents and keys, which follow one another in both directions.
constexpr int64_t kTerms = 16 * 20 * kSequence;

at::Tensor values(at::IntArrayRef sizes, const std::string& name) {
  auto generator = at::detail::createCPUGenerator(derive_seed(3, name));
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)) * 0.5;
}

LatentOptions options_of(int64_t q_rank, bool interleaved) {
  return {.q_rank = q_rank,
          .kv_rank = kKvRank,
          .rope_dim = kRotated,
          .rotary = std::make_shared<const ops::RotaryTable>(kRotated, kTheta),
          .interleaved = interleaved};
}

/// Latent attention as a model has it, with weights that depend on their names.
struct Layer {
  explicit Layer(const LatentOptions& options, const AttentionOptions& attention = {})
      : parameters(tensor::MeshCoordinates{}, {.dtype = at::kDouble}),
        make(parameters),
        heads(make.latent_heads("attention", kShape, options)),
        attention(make.attention("attention", kShape, attention)),
        out(make.from_heads("attention.out", kShape, {.bias = false})) {
    const at::NoGradGuard no_grad;
    for (Parameter& p : parameters) p.value.copy_(values(p.spec.shape, p.name));
  }
  at::Tensor forward(const at::Tensor& x, const ForwardContext& step) {
    return out->forward(attention->forward(heads->forward(x, step), step), step);
  }
  Parameters parameters;
  SerialLayers make;
  std::unique_ptr<HeadProjection> heads;
  std::unique_ptr<Attention> attention;
  std::unique_ptr<OutputProjection> out;
};

at::Tensor positions(int64_t from, int64_t to) { return at::arange(from, to, at::kLong).expand({kBatch, -1}); }

at::Tensor normed(const at::Tensor& x, const at::Tensor& weight) {
  return x * (x.square().mean(-1, true) + 1e-6).rsqrt() * weight;
}

/// Rotates x [B, S, N, R]: pairs of neighbours, or pairs half a head apart.
at::Tensor rotated(const at::Tensor& x, bool neighbours) {
  const int64_t pairs = x.size(-1) / 2;
  const at::Tensor frequency = at::pow(kTheta, at::arange(pairs, at::kDouble) * (-1.0 / static_cast<double>(pairs)));
  const at::Tensor angle = (at::arange(x.size(1), at::kDouble).unsqueeze(1) * frequency).view({1, x.size(1), 1, pairs});
  const at::Tensor first = neighbours ? x.slice(-1, 0, {}, 2) : x.narrow(-1, 0, pairs),
                   second = neighbours ? x.slice(-1, 1, {}, 2) : x.narrow(-1, pairs, pairs);
  return at::cat({first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()}, -1);
}

/// Computes the layer from its weights by the formulas of the paper.
at::Tensor formula(const std::map<std::string, at::Tensor>& w, const at::Tensor& x, int64_t q_rank, bool neighbours,
                   double scale) {
  const int64_t n = kShape.heads, d = kShape.head_dim, plain = d - kRotated, v_dim = kShape.v_head_dim;
  const int64_t q_rows = q_rank > 0 ? q_rank : n * d;
  const at::Tensor down = x.matmul(w.at("attention.latent.weight").t());
  at::Tensor q = down.narrow(-1, 0, q_rows);
  if (q_rank > 0) q = normed(q, w.at("attention.q_norm.weight")).matmul(w.at("attention.q_up.weight").t());
  q = q.unflatten(-1, {n, d});
  const at::Tensor latent = normed(down.narrow(-1, q_rows, kKvRank), w.at("attention.kv_norm.weight"));
  const at::Tensor kv = latent.matmul(w.at("attention.kv_up.weight").t()).unflatten(-1, {n, plain + v_dim});
  const at::Tensor key = rotated(down.narrow(-1, q_rows + kKvRank, kRotated).unsqueeze(2), neighbours);
  const at::Tensor scores =
      at::einsum("bsnd,btnd->bnst", {q.narrow(-1, 0, plain), kv.narrow(-1, 0, plain)}) +
      at::einsum("bsnd,btnd->bnst", {rotated(q.narrow(-1, plain, kRotated), neighbours), key.expand({-1, -1, n, -1})});
  const at::Tensor hidden = at::ones({x.size(1), x.size(1)}, at::kBool).triu(1);
  const at::Tensor weights = (scores * scale).masked_fill(hidden, -INFINITY).softmax(-1);
  const at::Tensor out = at::einsum("bnst,btnd->bsnd", {weights, kv.narrow(-1, plain, v_dim)});
  return out.flatten(2).matmul(w.at("attention.out.weight").t());
}

void check(int64_t q_rank, bool interleaved, double scale) {
  Layer layer(options_of(q_rank, interleaved), {.scale = scale});
  std::map<std::string, at::Tensor> weights;
  for (const Parameter& p : layer.parameters) weights[p.name] = p.value.detach().clone().requires_grad_();
  EXPECT_EQ(weights.size(), q_rank > 0 ? 6U : 4U);
  const at::Tensor x = values({kBatch, kSequence, kShape.hidden}, "x").requires_grad_(),
                   same = x.detach().clone().requires_grad_();
  const at::Tensor gradient = values({kBatch, kSequence, kShape.hidden}, "gradient");
  const at::Tensor got = layer.forward(x, {.positions = positions(0, kSequence)});
  const double factor = scale == 0 ? 1 / std::sqrt(static_cast<double>(kShape.head_dim)) : scale;
  const at::Tensor want = formula(weights, same, q_rank, interleaved, factor);
  got.backward(gradient);
  want.backward(gradient);
  test::expect_close(got.detach(), want.detach(), kTerms, "output");
  test::expect_close(x.grad(), same.grad(), kTerms, "gradient of the input");
  for (const Parameter& p : layer.parameters)
    test::expect_close(p.value.grad(), weights.at(p.name).grad(), kTerms * kBatch, "gradient of " + p.name);
}

TEST(LatentHeads, EqualThePlainFormula) {
  for (const int64_t q_rank : {6, 0})
    for (const bool interleaved : {true, false})
      for (const double scale : {0.0, 0.7})
        EXPECT_NO_THROW(check(q_rank, interleaved, scale)) << q_rank << " " << interleaved << " " << scale;
}

/// A cache that stores keys and values separately.
class SeparateCache final : public AttentionCache {
 public:
  KeysValues append(int64_t layer, const at::Tensor& k, const at::Tensor& v, const ForwardContext& step) override {
    EXPECT_TRUE(v.defined());
    return cache_.append(layer, k, v, step);
  }
  void advance(const ForwardContext& step, int64_t tokens) override { cache_.advance(step, tokens); }
  const std::vector<int64_t>& lengths() const override { return cache_.lengths(); }

 private:
  KvCache cache_{kSequence};
};

TEST(LatentHeads, DecodeWithACacheAsInOnePass) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = values({kBatch, kSequence, kShape.hidden}, "x");
  for (const int64_t q_rank : {6, 0}) {
    Layer layer(options_of(q_rank, true));
    const at::Tensor want = layer.forward(x, {.positions = positions(0, kSequence)});
    const auto check_cache = [&](AttentionCache& cache, const at::Tensor& given, const at::Tensor& wanted) {
      for (int64_t from = 0, to = 4; from < kSequence; from = to, ++to) {
        const ForwardContext step{.positions = positions(from, to).narrow(0, 0, given.size(0)),
                                  .parts = {Decoding{&cache}}};
        test::expect_close(layer.forward(given.slice(1, from, to), step), wanted.slice(1, from, to), kTerms, "decoded");
        cache.advance(step, to - from);
      }
    };
    KvCache latents(kSequence);
    SeparateCache separate;
    EXPECT_NO_THROW(check_cache(latents, x, want));
    EXPECT_NO_THROW(check_cache(separate, x, want));
    const auto pages = PagedCache::of_one_sequence(kSequence);
    EXPECT_NO_THROW(check_cache(*pages, x.narrow(0, 0, 1), want.narrow(0, 0, 1)));
  }
}

TEST(LatentHeads, CacheOneLatentForAllHeads) {
  const at::NoGradGuard no_grad;
  Layer layer(options_of(6, true));
  KvCache cache(kSequence);
  const ForwardContext step{.positions = positions(0, 3), .parts = {Decoding{&cache}}};
  const at::Tensor x = values({kBatch, 3, kShape.hidden}, "x");
  const Heads heads = layer.heads->forward(x, step);
  EXPECT_EQ(heads.k.sizes(), (at::IntArrayRef{kBatch, 3, 1, kKvRank + kRotated}));
  EXPECT_FALSE(heads.v.defined());
  const KeysValues held = cache.append(0, heads.k, heads.v, step);
  EXPECT_TRUE(held.v.is_same(held.k)) << "stored once";
}

TEST(LatentHeads, RefusesSizesThatDoNotFit) {
  const auto refusal = [](AttentionShape shape, const LatentOptions& options) {
    Parameters parameters(tensor::MeshCoordinates{}, {});
    SerialLayers make(parameters);
    return test::thrown_message([&] {
      make.latent_heads("x", shape, options);
      make.attention("x", shape, {});
    });
  };
  LatentOptions options = options_of(6, false);
  EXPECT_EQ(refusal(kShape, options), "");
  AttentionShape shape = kShape;
  shape.kv_heads = 1;
  EXPECT_THAT(refusal(shape, options), testing::HasSubstr("as many kv_heads as heads: got 1 and 3"));
  shape = kShape;
  shape.v_head_dim = 11;
  EXPECT_THAT(refusal(shape, options), testing::HasSubstr("no more features of v than of k: got 11 and 10"));
  options.rope_dim = 10;
  EXPECT_THAT(refusal(kShape, options), testing::HasSubstr("fewer than the features of a head: got 10 of 10"));
  options.rope_dim = 6;
  EXPECT_THAT(refusal(kShape, options), testing::HasSubstr("must rotate 6 features: got 4"));
  options = options_of(6, false);
  options.kv_rank = 0;
  EXPECT_THAT(refusal(kShape, options), testing::HasSubstr("the ranks of x must be at least 1"));
}

}  // namespace
}  // namespace colossal::nn::latent_heads_test
