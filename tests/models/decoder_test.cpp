// Compares blocks in all variants, and the decoder around them, with their formulas written in ATen.
#include "colossal/models/decoder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/rotary.h"
#include "models/hidden_states.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::models::decoder_test {
namespace {

using Placement = BlockVariant::Placement;
using Branches = BlockVariant::Branches;

constexpr int64_t kTerms = 4096;  // number of terms in the longest chain of sums in this file

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

at::Tensor gated_silu(const at::Tensor& both) { return ops::swiglu(both); }

/// A model with random weights, including norms and biases, and its formulas.
class Decoder {
 public:
  Decoder(ModelShape shape, const DecoderVariant& variant)
      : shape_(std::move(shape)), variant_(variant), parameters_({}, {at::kDouble}) {
    nn::SerialLayers layers(parameters_);
    model = make_decoder(shape_, variant_, layers);
    model.shape = shape_;
    uint64_t seed = 1;
    for (nn::Parameter& p : parameters_) p.value.detach().copy_(random(p.value.sizes(), seed++) * 0.3 + 0.1);
  }

  at::Tensor hidden_by_hand(const at::Tensor& ids) const {
    at::Tensor x = weight("embedding").index_select(0, ids.flatten()).view({ids.size(0), ids.size(1), -1});
    x = x * variant_.embedding_scale;
    if (variant_.learned_positions) x = x + weight("positions").narrow(0, variant_.position_offset, ids.size(1));
    if (variant_.embedding_norm) x = norm(x, "embedding_norm", variant_.block.norm);
    for (int64_t i = 0; i < shape_.layers; ++i)
      x = block(x, concat("blocks.", i), variant_.blocks ? variant_.blocks(i) : variant_.block);
    return variant_.final_norm ? norm(x, "norm", variant_.block.norm) : x;
  }

  at::Tensor logits_by_hand(const at::Tensor& hidden) const {
    const at::Tensor logits = at::matmul(hidden, weight(shape_.tied ? "embedding" : "head").t());
    const at::Tensor biased = variant_.head_bias ? logits + parameter("head.bias") : logits;
    return variant_.soft_cap > 0 ? variant_.soft_cap * (biased / variant_.soft_cap).tanh() : biased;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const nn::Parameter& p : parameters_) all.push_back(p.name);
    return all;
  }

  nn::Parameters& parameters() { return parameters_; }
  Model model;

 private:
  at::Tensor parameter(const std::string& name) const {
    for (const nn::Parameter& p : parameters_)
      if (p.name == name) return p.value;
    return {};
  }
  at::Tensor weight(const std::string& layer) const { return parameter(layer + ".weight"); }
  at::Tensor linear(const at::Tensor& x, const std::string& layer) const {
    const at::Tensor product = at::matmul(x, weight(layer).t()), bias = parameter(layer + ".bias");
    return bias.defined() ? product + bias : product;
  }
  at::Tensor rms(const at::Tensor& x, const std::string& layer, const NormVariant& variant) const {
    const at::Tensor factor = variant.unit_offset ? 1 + weight(layer) : weight(layer);
    return x / (x.square().mean(-1, true) + shape_.norm_epsilon).sqrt() * factor;
  }
  at::Tensor norm(const at::Tensor& x, const std::string& layer, const NormVariant& variant) const {
    if (variant.kind == NormVariant::Kind::Rms) return rms(x, layer, variant);
    const at::Tensor centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + shape_.norm_epsilon).sqrt() * weight(layer) +
           parameter(layer + ".bias");
  }
  at::Tensor turned(const at::Tensor& head, const BlockVariant& variant) const {
    if (!variant.rotary) return head;
    const at::Tensor angles =
        at::arange(head.size(1), at::kDouble).unsqueeze(1) * variant.rotary->frequencies().unsqueeze(0);
    const auto halves = head.chunk(2, -1);
    return at::cat(
        {halves[0] * angles.cos() - halves[1] * angles.sin(), halves[1] * angles.cos() + halves[0] * angles.sin()}, -1);
  }
  at::Tensor attention(const at::Tensor& x, const std::string& name, const BlockVariant& variant) const {
    const int64_t size = shape_.head_dim, length = x.size(1), window = variant.attention.window;
    const auto qkv = linear(x, name + ".qkv")
                         .split_with_sizes({shape_.heads * size, shape_.kv_heads * size, shape_.kv_heads * size}, -1);
    const auto head = [&](int64_t which, int64_t index, const char* its_norm) {
      const at::Tensor one = qkv[static_cast<size_t>(which)].narrow(-1, index * size, size);
      return turned(variant.head_norms ? rms(one, name + its_norm, variant.norm) : one, variant);
    };
    at::Tensor seen = at::ones({length, length}, at::kBool).tril();
    if (window > 0) seen = seen.logical_and(at::ones({length, length}, at::kBool).triu(1 - window));
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < shape_.heads; ++h) {
      const int64_t kv = h / (shape_.heads / shape_.kv_heads);
      const at::Tensor scores = at::matmul(head(0, h, ".q_norm"), head(1, kv, ".k_norm").transpose(1, 2)) /
                                std::sqrt(static_cast<double>(size));
      const at::Tensor shares = scores.masked_fill(seen.logical_not(), -1e300).softmax(-1);
      heads.push_back(at::matmul(shares, qkv[2].narrow(-1, kv * size, size)));
    }
    return linear(at::cat(heads, -1), name + ".out");
  }
  at::Tensor feed_forward(const at::Tensor& x, const std::string& name, const BlockVariant& variant) const {
    if (!variant.gated) return linear(ops::gelu_reference(linear(x, name + ".up")), name + ".down");
    const auto both = linear(x, name + ".gate_up").chunk(2, -1);
    return linear(both[0] * both[0].sigmoid() * both[1], name + ".down");
  }
  at::Tensor block(const at::Tensor& x, const std::string& name, const BlockVariant& variant) const {
    const auto normed = [&](const at::Tensor& y, const char* which) { return norm(y, name + which, variant.norm); };
    const bool around = variant.placement == Placement::Around;
    const auto attended = [&](const at::Tensor& y) {
      const at::Tensor made = attention(y, name + ".attention", variant);
      return around ? normed(made, ".attention.post_norm") : made;
    };
    const auto fed = [&](const at::Tensor& y) {
      const at::Tensor made = feed_forward(y, name + ".mlp", variant);
      return around ? normed(made, ".mlp.post_norm") : made;
    };
    if (variant.placement == Placement::After) {
      const at::Tensor h = normed(x + attended(x), ".norm_1");
      return normed(h + fed(h), ".norm_2");
    }
    const at::Tensor first = normed(x, ".norm_1");
    if (variant.branches == Branches::OneNorm) return x + attended(first) + fed(first);
    if (variant.branches == Branches::TwoNorms) return x + attended(first) + fed(normed(x, ".norm_2"));
    const at::Tensor h = x + attended(first);
    return h + fed(normed(h, ".norm_2"));
  }

  ModelShape shape_;
  DecoderVariant variant_;
  nn::Parameters parameters_;
};

/// Compares hidden states, logits and all gradients with the formulas.
void expect_formulas(const ModelShape& shape, const DecoderVariant& variant, const std::string& what) {
  SCOPED_TRACE(what);
  Decoder decoder(shape, variant);
  const at::Tensor ids = at::randint(0, shape.vocabulary, {2, 9}, at::detail::createCPUGenerator(7), at::kLong);
  const nn::ForwardContext step{.positions = at::arange(9, at::kLong).expand({2, 9})};
  const at::Tensor want = decoder.hidden_by_hand(ids), weights = random(want.sizes(), 5);
  const at::Tensor want_logits = decoder.logits_by_hand(want);
  (want * weights).sum().backward();
  std::map<std::string, at::Tensor> gradients;
  for (nn::Parameter& p : decoder.parameters())
    std::swap(gradients[p.name], p.value.mutable_grad());  // undefined for weights of the head only
  const at::Tensor got = hidden_states(decoder.model, ids, step);
  test::expect_close(got.detach(), want.detach(), kTerms, "hidden states");
  test::expect_close(decoder.model.head->logits(got, step).detach(), want_logits.detach(), kTerms, "logits");
  (got * weights).sum().backward();
  for (const nn::Parameter& p : decoder.parameters()) {
    if (!gradients.at(p.name).defined()) continue;
    test::expect_close(p.value.grad(), gradients.at(p.name), kTerms, "gradient of " + p.name);
  }
}

ModelShape grouped() {
  ModelShape shape = test::tiny_llama();
  shape.heads = 6, shape.kv_heads = 3, shape.head_dim = 4;
  return shape;
}

TEST(TransformerBlock, EqualsFormulasInAllVariants) {
  const auto rotary = std::make_shared<const ops::RotaryTable>(4, 100.0);
  const auto check = [&](const char* what, const BlockVariant& block) {
    expect_formulas(grouped(), {.block = block}, what);
  };
  const BlockVariant plain{.activation = ops::gelu};
  check("norms after", {.placement = Placement::After, .activation = ops::gelu});
  check("norms around", {.placement = Placement::Around, .activation = ops::gelu});
  check("one norm", {.branches = Branches::OneNorm, .activation = ops::gelu});
  check("two norms", {.branches = Branches::TwoNorms, .activation = ops::gelu, .rotary = rotary});
  check("one norm, and one behind each", {.norm = {NormVariant::Kind::Rms, /*unit_offset=*/true},
                                          .placement = Placement::Around,
                                          .branches = Branches::OneNorm,
                                          .activation = ops::gelu});
  check("norms of heads", {.norm = {NormVariant::Kind::Rms, /*unit_offset=*/true},
                           .activation = gated_silu,
                           .gated = true,
                           .bias = {.qkv = false, .out = false, .mlp = true},
                           .head_norms = true,
                           .rotary = rotary});
  expect_formulas(grouped(),
                  {.block = plain,
                   .blocks =
                       [&](int64_t i) {
                         BlockVariant block = plain;
                         block.attention.window = i == 0 ? 3 : 0;
                         return block;
                       }},
                  "a window in the first block");
}

TEST(TransformerBlock, DeclaresParametersOfItsVariant) {
  const auto names = [](const BlockVariant& block) {
    ModelShape shape = grouped();
    shape.layers = 1;
    std::vector<std::string> all = Decoder(shape, {.block = block}).names();
    std::erase_if(all, [](const std::string& name) { return !name.starts_with("blocks.0.") || name.ends_with("t"); });
    return all;
  };
  using testing::ElementsAre;
  EXPECT_THAT(names({.activation = ops::gelu, .bias = {.out = false}}),
              ElementsAre("blocks.0.norm_1.bias", "blocks.0.attention.qkv.bias", "blocks.0.norm_2.bias",
                          "blocks.0.mlp.up.bias", "blocks.0.mlp.down.bias"));
  EXPECT_THAT(names({.branches = Branches::OneNorm, .activation = ops::gelu, .bias = {.qkv = false, .mlp = false}}),
              ElementsAre("blocks.0.norm_1.bias", "blocks.0.attention.out.bias"));
}

TEST(TransformerBlock, RefusesParallelBranchesWithNormsAfter) {
  const auto refusal = [](Branches branches) {
    return test::thrown_message([&] {
      Decoder(grouped(), {.block = {.placement = Placement::After, .branches = branches, .activation = ops::gelu}});
    });
  };
  EXPECT_THAT(refusal(Branches::OneNorm), testing::HasSubstr("must be sequential"));
  EXPECT_THAT(refusal(Branches::TwoNorms), testing::HasSubstr("must be sequential"));
  EXPECT_EQ(refusal(Branches::InTurn), "");
}

TEST(Decoder, EqualsFormulas) {
  const BlockVariant block{.activation = ops::gelu};
  ModelShape tied = grouped();
  tied.tied = true;
  expect_formulas(grouped(), {.block = block, .learned_positions = true}, "learned positions");
  expect_formulas(grouped(), {.block = block, .learned_positions = true, .position_offset = 2}, "two rows behind");
  expect_formulas(tied, {.block = block, .embedding_scale = 1.5, .embedding_norm = true}, "a scale and a norm");
  expect_formulas(tied, {.block = block, .final_norm = false, .head_bias = true, .soft_cap = 2},
                  "a biased, capped head, and no norm");
}

TEST(Decoder, AppliesEmbeddingDropoutOfItsFamily) {
  for (const bool drops : {true, false}) {
    ModelShape shape = grouped();
    shape.dropout = 0.9;
    nn::Parameters parameters({}, {at::kDouble});
    nn::SerialLayers layers(parameters);
    const Model model = make_decoder(shape, {.block = {.activation = ops::gelu}, .embedding_dropout = drops}, layers);
    const at::Tensor where = at::zeros({1, 8}, at::kLong);
    const at::Tensor x = model.embed(nn::token_batch(where), {.positions = where, .training = true, .dropout_seed = 5});
    EXPECT_EQ(x.eq(0).any().item<bool>(), drops);
  }
}

// The scale is sqrt(24) in fp32, rounded again to bf16, as in transformers.
TEST(Decoder, RoundsScaleToEmbeddingDtype) {
  ModelShape shape = grouped();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    nn::Parameters parameters({}, {dtype});
    nn::SerialLayers layers(parameters);
    const Model model =
        make_decoder(shape, {.block = {.activation = ops::gelu}, .embedding_scale = std::sqrt(24.0)}, layers);
    parameters.at("embedding.weight").value.detach().fill_(1);
    const at::Tensor x =
        model.embed(nn::token_batch(at::zeros({1, 1}, at::kLong)), {.positions = at::zeros({1, 1}, at::kLong)});
    const float want = std::sqrt(24.0f);
    EXPECT_EQ(x.scalar_type(), dtype);
    EXPECT_EQ(x[0][0][0].item<double>(), dtype == at::kBFloat16 ? 4.90625 : static_cast<double>(want));
  }
}

}  // namespace
}  // namespace colossal::models::decoder_test
