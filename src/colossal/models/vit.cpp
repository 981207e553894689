#include "colossal/models/vit.h"

#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/cross_entropy.h"

namespace colossal::models {
namespace vit {  // the same names in every family

constexpr double kDeviation = 0.02;

struct VitBlock {
  VitBlock(const ModelShape& s, int64_t index, nn::Layers& make) {
    const std::string name = concat("blocks.", index);
    const double residual = kDeviation / std::sqrt(2.0 * s.layers);  // keeps the variance of the residual stream
    norm_1 = make.layer_norm(name + ".norm_1", s.hidden, s.norm_epsilon);
    qkv = make.heads(name + ".attention.qkv", s.attention(), {.deviation = kDeviation});
    attention = make.attention(name + ".attention", s.attention(), {.causal = false});
    out = make.from_heads(name + ".attention.out", s.attention(), {.deviation = residual});
    norm_2 = make.layer_norm(name + ".norm_2", s.hidden, s.norm_epsilon);
    up = make.expand(name + ".mlp.up", s.hidden, s.ffn, {.deviation = kDeviation});
    down = make.contract(name + ".mlp.down", s.ffn, s.hidden, {.deviation = residual});
    drop_1 = make.dropout(name + ".attention.dropout", s.hidden, s.dropout);
    drop_2 = make.dropout(name + ".mlp.dropout", s.hidden, s.dropout);
  }
  at::Tensor forward(const at::Tensor& x, const nn::Step& step) {
    const nn::Inside attended = attention->forward(qkv->forward(norm_1->forward(x)), step);
    const at::Tensor h = x + drop_1->forward(out->forward(attended), step);
    return h + drop_2->forward(down->forward(up->forward(norm_2->forward(h)).map(ops::exact_gelu, step)), step);
  }
  std::unique_ptr<nn::Norm> norm_1, norm_2;
  std::unique_ptr<nn::HeadProjection> qkv;
  std::unique_ptr<nn::Attention> attention;
  std::unique_ptr<nn::Expand> up;
  std::unique_ptr<nn::Contract> out, down;
  std::unique_ptr<nn::Dropout> drop_1, drop_2;
};

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.shape = s;
  const ImageShape& i = s.image;
  // The scale of pixels is kept: their variance is 1, and so is that of a sum over a patch.
  const double of_patch = 1 / std::sqrt(static_cast<double>(i.channels * i.patch * i.patch));
  std::shared_ptr<nn::PatchEmbedding> patches =
      layers.patch_embedding("patches", {i.channels, i.side, i.patch}, s.hidden, of_patch);
  std::shared_ptr<nn::Embedding> class_token = layers.positions("class_token", 1, s.hidden, kDeviation);
  std::shared_ptr<nn::Embedding> positions = layers.positions("positions", s.positions, s.hidden, kDeviation);
  std::shared_ptr<nn::Dropout> dropout = layers.dropout("embedding.dropout", s.hidden, s.dropout);
  const at::ScalarType dtype = layers.parameters().options().dtype;
  model.embed = [=, count = s.positions](const at::Tensor& images, const nn::Step& step) {
    const auto ids = at::TensorOptions(images.device()).dtype(at::kLong);
    const at::Tensor first = class_token->forward(at::zeros({images.size(0), 1}, ids));
    const at::Tensor tokens = at::cat({first, patches->forward(images.to(dtype))}, 1);
    return dropout->forward(tokens + positions->forward(at::arange(count, ids).expand({images.size(0), count})), step);
  };
  for (int64_t index = 0; index < s.layers; ++index) {
    auto block = std::make_shared<VitBlock>(s, index, layers);
    model.blocks.push_back([block](const at::Tensor& x, const nn::Step& step) { return block->forward(x, step); });
  }
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, s.norm_epsilon);
  // The head reads the class token alone, and a norm sees each token by itself: that of the others would be thrown
  // away.
  model.norm = [norm](const at::Tensor& x, const nn::Step&) { return norm->forward(x.narrow(1, 0, 1)); };
  model.head = layers.classifier("head", s.hidden, i.classes, kDeviation);
  return model;
}

void check(const ModelShape& s, const at::Tensor& images, const at::Tensor& labels) {
  const ImageShape& i = s.image;
  require(images.dim() == 4 && images.size(1) == i.channels && images.size(2) == i.side && images.size(3) == i.side,
          "data", "images must be [B, ", i.channels, ", ", i.side, ", ", i.side, "] for this model: got ",
          images.sizes(), "; change model.channels and model.side");
  require(labels.dim() == 2 && labels.size(0) == images.size(0) && labels.size(1) == 1, "data",
          "labels must be [B, 1], one an image: got ", labels.sizes(), " for ", images.size(0), " images");
  const int64_t most = labels.max().item<int64_t>();
  const bool inside = labels.ge(0).logical_or(labels.eq(ops::kIgnoredLabel)).all().item<bool>();
  require(inside && most < i.classes, "data", "labels must be classes of the model, which has ", i.classes, ": got ",
          inside ? most : labels.min().item<int64_t>());
}

int64_t layer_elements(const ModelShape& s) {
  return s.hidden * (s.heads + 2 * s.kv_heads) * s.head_dim + s.heads * s.head_dim * s.hidden + 2 * s.hidden * s.ffn;
}

int64_t patch_elements(const ModelShape& s) { return s.hidden * s.image.channels * s.image.patch * s.image.patch; }

int64_t matrix_elements(const ModelShape& s) {
  return s.layers * layer_elements(s) + patch_elements(s) + s.image.classes * s.hidden;
}

/// 6 for each element and each row that it is multiplied with: tokens in the layers, patches at the input, one row at
/// the head; and 12 * tokens^2 * heads * head_dim a layer for attention, which sees all of it.
double flops(const ModelShape& s, int64_t) {
  const double tokens = static_cast<double>(s.positions), patches = static_cast<double>(s.image.patches());
  const double layer = 6.0 * tokens * static_cast<double>(layer_elements(s)) +
                       12.0 * tokens * tokens * static_cast<double>(s.heads * s.head_dim);
  return static_cast<double>(s.layers) * layer + 6.0 * patches * static_cast<double>(patch_elements(s)) +
         6.0 * static_cast<double>(s.image.classes * s.hidden);
}

ModelShape sized(const ImageShape& image, int64_t hidden, int64_t layers, int64_t heads, int64_t ffn) {
  return {.architecture = "vit",
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = ffn,
          .positions = image.patch > 0 ? image.patches() + 1 : 0,
          .norm_epsilon = 1e-12,
          .tied = false,
          .image = image};
}

std::vector<Preset> presets() {
  // Base, Large, Huge: table 1 of the paper, at 224 pixels in patches of 16, for the 1000 classes of ImageNet.
  const ImageShape imagenet{.side = 224, .channels = 3, .patch = 16, .classes = 1000};
  return {{"vit-tiny-cifar", sized({.side = 32, .channels = 3, .patch = 4, .classes = 10}, 128, 4, 4, 256)},
          {"vit-base-16", sized(imagenet, 768, 12, 12, 3072)},
          {"vit-large-16", sized(imagenet, 1024, 24, 16, 4096)},
          {"vit-huge-16", sized(imagenet, 1280, 32, 16, 5120)}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  std::vector<nn::ExternalName> names{
      {.ours = "class_token.weight", .parts = {"vit.embeddings.cls_token"}, .leading_ones = 1},
      {.ours = "positions.weight", .parts = {"vit.embeddings.position_embeddings"}, .leading_ones = 1}};
  for (const std::string kind : {".weight", ".bias"}) {
    names.push_back({"patches" + kind, {"vit.embeddings.patch_embeddings.projection" + kind}});
    names.push_back({"norm" + kind, {"vit.layernorm" + kind}});
    names.push_back({"head" + kind, {"classifier" + kind}});
  }
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string ours = concat("blocks.", i), theirs = concat("vit.encoder.layer.", i),
                      attention = theirs + ".attention.attention.";
    for (const std::string kind : {".weight", ".bias"}) {
      names.push_back({ours + ".norm_1" + kind, {theirs + ".layernorm_before" + kind}});
      names.push_back({ours + ".attention.qkv" + kind,
                       {attention + "query" + kind, attention + "key" + kind, attention + "value" + kind}});
      names.push_back({ours + ".attention.out" + kind, {theirs + ".attention.output.dense" + kind}});
      names.push_back({ours + ".norm_2" + kind, {theirs + ".layernorm_after" + kind}});
      names.push_back({ours + ".mlp.up" + kind, {theirs + ".intermediate.dense" + kind}});
      names.push_back({ours + ".mlp.down" + kind, {theirs + ".output.dense" + kind}});
    }
  }
  return names;
}

ModelShape from_json(const nlohmann::json& j) {
  ImageShape image{
      .side = j.at("image_size"), .channels = j.value("num_channels", int64_t{3}), .patch = j.at("patch_size")};
  require(image.side > 0 && image.side <= kLargestSide, "model", "image_size must be in [1, ", kLargestSide, "]: got ",
          image.side);
  // transformers writes the labels, and none at all where there are its default of two.
  image.classes =
      j.contains("id2label") ? static_cast<int64_t>(j["id2label"].size()) : j.value("num_labels", int64_t{2});
  ModelShape s = sized(image, j.at("hidden_size"), j.at("num_hidden_layers"),
                       std::max<int64_t>(1, j.at("num_attention_heads")), j.at("intermediate_size"));
  s.norm_epsilon = j.value("layer_norm_eps", 1e-12);
  s.dropout = j.value("hidden_dropout_prob", 0.0);
  require(j.value("hidden_act", "gelu") == "gelu", "model", "hidden_act of a ViT must be gelu: got ",
          j.value("hidden_act", ""));
  require(j.value("qkv_bias", true), "model", "a ViT without qkv_bias is not supported");
  return s;
}

nlohmann::json to_json(const ModelShape& s) {
  nlohmann::json names = nlohmann::json::object(), numbers = nlohmann::json::object();
  for (int64_t i = 0; i < s.image.classes; ++i) {
    const std::string label = concat("LABEL_", i);
    names[std::to_string(i)] = label;
    numbers[label] = i;
  }
  return {{"architectures", {"ViTForImageClassification"}},
          {"model_type", "vit"},
          {"image_size", s.image.side},
          {"patch_size", s.image.patch},
          {"num_channels", s.image.channels},
          {"hidden_size", s.hidden},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"intermediate_size", s.ffn},
          {"hidden_act", "gelu"},
          {"layer_norm_eps", s.norm_epsilon},
          {"hidden_dropout_prob", s.dropout},
          {"attention_probs_dropout_prob", 0.0},
          {"qkv_bias", true},
          {"id2label", names},
          {"label2id", numbers}};
}

}  // namespace vit

Architecture vit_architecture() {
  using namespace vit;
  return {.name = "vit",
          .input = Input::Images,
          .presets = presets,
          .make = make,
          .check = check,
          .matrix_elements = matrix_elements,
          .flops = flops,
          .external_names = external_names,
          .from_json = from_json,
          .to_json = to_json,
          .model_type = "vit",
          .prefix = "vit.",
          .ignored = {"vit.pooler.*", "pooler.*"}};
}

}  // namespace colossal::models
