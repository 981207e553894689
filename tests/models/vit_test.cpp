// Compares the Vision Transformer with the formulas of its paper written in ATen; checks its counts and refusals.
#include "colossal/models/families/vit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/serial_layers.h"
#include "models/hidden_states.h"
#include "support/parity.h"
#include "support/thrown_message.h"
#include "support/tolerance.h"

namespace colossal::models::vit_test {
namespace {

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

struct Made {
  explicit Made(const ModelShape& shape) : parameters({}, {at::kDouble}) {
    nn::SerialLayers layers(parameters);
    model = make_model(shape, layers);
    uint64_t seed = 1;
    // all parameters, including norms and biases
    for (nn::Parameter& p : parameters) p.value.detach().copy_(random(p.value.sizes(), seed++) * 0.3 + 0.1);
  }
  at::Tensor operator[](const std::string& name) { return parameters.at(name).value; }
  nn::Parameters parameters;
  Model model;
};

/// Computes equations 1 to 4 of arXiv:2010.11929, with the patch projection as a convolution and attention head by
/// head.
at::Tensor logits_by_hand(Made& made, const at::Tensor& images) {
  const ModelShape& s = made.model.shape;
  auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor centred = x - x.mean(-1, true);
    return centred / (centred.square().mean(-1, true) + s.norm_epsilon).sqrt() * made[name + ".weight"] +
           made[name + ".bias"];
  };
  auto product = [&](const at::Tensor& x, const std::string& name) {
    return at::matmul(x, made[name + ".weight"].t());
  };
  auto linear = [&](const at::Tensor& x, const std::string& name) { return product(x, name) + made[name + ".bias"]; };
  const auto own = s.own.as<VitSizes>();
  const bool is_relu = own.activation == "relu";
  const at::Tensor patches =
      at::conv2d(images, made["patches.weight"], made["patches.bias"], s.own.as<VitSizes>().patch)
          .flatten(2)
          .transpose(1, 2);
  at::Tensor x = at::cat({made["class_token.weight"].expand({images.size(0), -1, s.hidden}), patches}, 1) +
                 made["positions.weight"];
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string name = concat("blocks.", i);
    const at::Tensor normed = norm(x, name + ".norm_1");
    const std::string to_heads = name + ".attention.qkv";
    const auto qkv = (own.qkv_bias ? linear(normed, to_heads) : product(normed, to_heads)).chunk(3, -1);
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < s.heads; ++h) {
      auto head = [&](const at::Tensor& t) { return t.narrow(-1, h * s.head_dim, s.head_dim); };
      const at::Tensor scores =
          at::matmul(head(qkv[0]), head(qkv[1]).transpose(1, 2)) / std::sqrt(static_cast<double>(s.head_dim));
      heads.push_back(at::matmul(scores.softmax(-1), head(qkv[2])));
    }
    x = x + linear(at::cat(heads, -1), name + ".attention.out");
    const at::Tensor up = linear(norm(x, name + ".norm_2"), name + ".mlp.up");
    const at::Tensor active = is_relu ? up.clamp_min(0) : up * 0.5 * (1 + at::erf(up / std::sqrt(2.0)));
    x = x + linear(active, name + ".mlp.down");
  }
  const at::Tensor tokens = norm(x, "norm"), logits = linear(tokens.select(1, 0), "head");
  if (!own.distillation_head) return logits;
  return (logits + linear(tokens.select(1, 1), "head.distillation")) / 2;
}

TEST(Vit, EqualsFormulas) {
  // 9 patches of 3 x 3 pixels in one channel, and more tokens than the minimum of an attention kernel
  ModelShape wide = test::tiny_vit();
  wide.own = VitSizes{.side = 9, .channels = 1, .patch = 3, .classes = 4};
  wide.positions = 10;
  ModelShape other = test::tiny_deit();
  other.own = VitSizes{.side = 8, .channels = 3, .patch = 4, .classes = 7, .activation = "relu", .qkv_bias = false};
  ModelShape distilled = test::tiny_deit();
  distilled.own = VitSizes{.side = 8, .channels = 3, .patch = 4, .classes = 7, .distillation_head = true};
  for (const ModelShape& shape : {test::tiny_vit(), wide, test::tiny_deit(), other, distilled}) {
    Made made(shape);
    const auto i = shape.own.as<VitSizes>();
    const at::Tensor images = random({3, i.channels, i.side, i.side}, 99),
                     labels = at::tensor({2, 0, 3}, at::kLong).view({3, 1});
    const at::Tensor want = logits_by_hand(made, images),
                     want_loss = at::cross_entropy_loss(want, labels.flatten(), {}, at::Reduction::Sum);
    want_loss.backward();
    std::map<std::string, at::Tensor> gradients;
    for (const nn::Parameter& p : made.parameters) gradients[p.name] = p.value.grad().clone();
    for (nn::Parameter& p : made.parameters) p.value.mutable_grad() = at::Tensor();

    const at::Tensor hidden = hidden_states(made.model, images, {});
    EXPECT_EQ(hidden.sizes(), (std::vector<int64_t>{3, i.distillation_head ? 2 : 1, shape.hidden}));
    test::expect_close(made.model.head->logits(hidden, {}).squeeze(1).detach(), want.detach(), 4096, "logits");
    const at::Tensor loss = made.model.head->loss_sum(hidden, labels, {});
    test::expect_close(loss.detach(), want_loss.detach(), 4096, "loss");
    EXPECT_EQ(made.model.head->found(hidden, labels, {}).item<int64_t>(),
              want.argmax(-1).eq(labels.flatten()).sum().item<int64_t>());
    loss.backward();
    for (const nn::Parameter& p : made.parameters)
      test::expect_close(p.value.grad(), gradients.at(p.name), 4096, "gradient of " + p.name);
  }
}

TEST(Vit, AcceptsImagesOfAnotherPrecision) {
  Made made(test::tiny_vit());
  const at::Tensor images = random({2, 3, 8, 8}, 3).to(at::kFloat);
  EXPECT_EQ(hidden_states(made.model, images, {}).scalar_type(), at::kDouble);
}

// The published count for ViT-B/16 at 224 pixels is 17.6 billion multiply-adds per forward pass. A step is three such
// passes with two operations each.
TEST(Vit, MatchesPublishedFlops) {
  const ModelShape base = built_in().resolve({.name = "vit-base-16"});
  EXPECT_NEAR(costs_of(base, example_batch(base, 1, 0)).sum() / 6e9, 17.58, 0.1);
}

TEST(Vit, BuildsModelOfItsShape) {
  const ModelShape shape =
      built_in().resolve({.name = "vit-tiny-cifar", .layers = 2, .own = own_keys({"side=48", "patch=8", "classes=3"})});
  EXPECT_EQ(shape.positions, 37);
  Made made(shape);
  EXPECT_EQ(made.model.blocks.size(), 2u);
  EXPECT_EQ(made["patches.weight"].sizes(), (std::vector<int64_t>{128, 3, 8, 8}));
  EXPECT_EQ(made["positions.weight"].sizes(), (std::vector<int64_t>{37, 128}));
  EXPECT_EQ(made["head.weight"].sizes(), (std::vector<int64_t>{3, 128}));
  const auto names = shape.architecture->hugging_face.names(shape);
  for (const auto& external : names) EXPECT_NO_THROW(made.parameters.at(external.ours));
  EXPECT_EQ(made.parameters.size(), names.size());
}

std::vector<tensor::Dim> kinds(const at::Tensor& field) {
  std::vector<tensor::Dim> kinds(static_cast<size_t>(field.dim()), tensor::Dim::Other);
  kinds[0] = tensor::Dim::Row;
  return kinds;
}

TEST(Vit, RefusesInvalidInputs) {
  const ModelShape s = test::tiny_vit();
  const auto pictures = [](const at::Tensor& images, const at::Tensor& labels) {
    tensor::Batch batch;
    batch.add("images", {images, kinds(images)});
    batch.add("labels", {labels, kinds(labels)});
    return batch;
  };
  auto check = [&](at::IntArrayRef images, const at::Tensor& labels) {
    return test::thrown_message([&] { check_batch(s, pictures(at::zeros(images), labels)); });
  };
  const at::Tensor labels = at::tensor({0, 6}, at::kLong).view({2, 1});
  EXPECT_EQ(check({2, 3, 8, 8}, labels), "");
  EXPECT_EQ(check({2, 3, 8, 8}, at::full({2, 1}, -100, at::kLong)), "");
  EXPECT_NE(check({2, 3, 9, 9}, labels).find("images must be [B, 3, 8, 8] for this model: got [2, 3, 9, 9]"),
            std::string::npos);
  EXPECT_NE(check({2, 8}, labels).find("images must be"), std::string::npos);
  EXPECT_NE(check({3, 3, 8, 8}, labels).find("field `labels` must have the 3 rows of the batch: got 2"),
            std::string::npos);
  EXPECT_NE(check({1, 3, 8, 8}, labels.view({1, 2})).find("labels must be [B, 1], one per sample: got [1, 2]"),
            std::string::npos);
  EXPECT_NE(check({2, 3, 8, 8}, labels + 1).find("which has 7: got 7"), std::string::npos);
  EXPECT_NE(check({2, 3, 8, 8}, labels - 1).find("got -1"), std::string::npos);
}

TEST(Vit, RefusesSizesThatDoNotFit) {
  auto sizes = [](const ModelConfig& config) { return test::thrown_message([&] { built_in().resolve(config); }); };
  EXPECT_NE(sizes({.name = "vit-tiny-cifar", .own = own_keys({"patch=5"})})
                .find("must be divisible by patch: got side 32, patch 5"),
            std::string::npos);
  EXPECT_NE(sizes({.name = "vit-tiny-cifar", .own = own_keys({"patch=64"})}).find("side must be divisible by patch"),
            std::string::npos);
  EXPECT_NE(sizes({.name = "vit-tiny-cifar", .positions = 70}).find("keys of text models, not of vit-tiny-cifar"),
            std::string::npos);
}

TEST(Vit, RefusesUnsupportedConfigurations) {
  const auto j = built_in().at("vit")->hugging_face.to_json(built_in().resolve({.name = "vit-tiny-cifar"}));
  auto with = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json changed = j;
    changed[key] = value;
    return test::thrown_message([&] { built_in().shape_of(changed); });
  };
  EXPECT_NE(with("hidden_act", "prelu").find("hidden_act of a ViT must be "), std::string::npos);
  EXPECT_NE(with("architectures", {"DeiTForImageClassificationWithTeacher"})
                .find("distillation_head must be false for a ViT"),
            std::string::npos);
  EXPECT_NE(with("image_size", {224, 112}).find("image_size of a ViT must be an integer: got [224,112]"),
            std::string::npos);
  EXPECT_NE(with("image_size", int64_t{1} << 40).find("image_size must be in [1, 65536]"), std::string::npos);
  EXPECT_NE(with("patch_size", 5).find("image_size of config.json must be a multiple of patch_size: got 32 and 5"),
            std::string::npos);
  EXPECT_NE(with("patch_size", 0).find("patch must be between 1 and 65536: got 0"), std::string::npos);
  EXPECT_NE(with("id2label", nlohmann::json::object()).find("classes must be between 1 and 16777216: got 0"),
            std::string::npos);
}

}  // namespace
}  // namespace colossal::models::vit_test
