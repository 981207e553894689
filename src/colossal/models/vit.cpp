#include "colossal/models/vit.h"

#include <ATen/ATen.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/models/class_names.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/transformer_block.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

void VitSizes::fields(Fields& f) {
  f.integer("side", side, "pixels", "of the images, which are square", 1, kLargestSide);
  f.integer("channels", channels, "channels", "of the images", 1, kLargestSize);
  f.integer("patch", patch, "pixels", "side of a patch", 1, kLargestSide);
  f.integer("classes", classes, "classes", "that it tells apart", 1, kMostClasses);
  f.texts("class_names", class_names, "what the classes are called, in their order; empty: they have numbers alone");
}

namespace vit {  // the same names in every family

Task task(const ModelShape& s) {
  const auto image = s.own.as<VitSizes>();
  return {.reads = Reads::Images,
          .objective = Objective::Class,
          .classes = image.classes,
          .class_names = image.class_names,
          .channels = image.channels,
          .side = image.side};
}

/// The positions are those of the patches, and one for the class token.
void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  const auto image = s.own.as<VitSizes>();
  const std::pair<const char*, int64_t> sizes[] = {
      {"side", image.side}, {"channels", image.channels}, {"patch", image.patch}, {"classes", image.classes}};
  for (const auto& [name, size] : sizes) require(size > 0, "model", name, " must be positive: got ", size);
  require(image.side % image.patch == 0, "model", "side must divide by patch: got side ", image.side, ", patch ",
          image.patch);
  check_class_names({image.classes, image.class_names});
  s.positions = image.patches() + 1;
}

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  const auto i = s.own.as<VitSizes>();
  // The scale of pixels is kept: their variance is 1, and so is that of a sum over a patch.
  const double of_patch = 1 / std::sqrt(static_cast<double>(i.channels * i.patch * i.patch));
  std::shared_ptr<nn::PatchEmbedding> patches =
      layers.patch_embedding("patches", {i.channels, i.side, i.patch}, s.hidden, of_patch, "class_token", kDeviation);
  std::shared_ptr<nn::Embedding> positions = layers.positions("positions", s.positions, s.hidden, kDeviation);
  std::shared_ptr<nn::Dropout> dropout = layers.dropout("embedding.dropout", s.hidden, s.dropout);
  const at::ScalarType dtype = layers.parameters().options().dtype;
  model.embed = [=, count = s.positions](const at::Tensor& images, const nn::Step& step) {
    const auto ids = at::TensorOptions(images.device()).dtype(at::kLong);
    const at::Tensor tokens = patches->forward(images.to(dtype), step);
    const at::Tensor where = at::arange(count, ids).expand({images.size(0), count});
    return dropout->forward(tokens + positions->forward(where, step), step);
  };
  add_transformer_blocks(model, s, {.activation = ops::exact_gelu, .attention = {.causal = false}}, layers);
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  // The head reads the class token alone, and a norm sees each token by itself: that of the others would be thrown
  // away.
  model.norm = [norm](const at::Tensor& x, const nn::Step&) { return norm->forward(x.narrow(1, 0, 1)); };
  model.head = layers.classifier("head", s.hidden, i.classes, kDeviation);
  return model;
}

ModelShape sized(const VitSizes& image, int64_t hidden, int64_t layers, int64_t heads, int64_t ffn) {
  return {.hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn = ffn,
          .norm_epsilon = 1e-12,
          .tied = false,
          .own = image};
}

std::vector<Preset> presets() {
  // Base, Large, Huge: table 1 of the paper, at 224 pixels in patches of 16, for the 1000 classes of ImageNet.
  const VitSizes imagenet{.side = 224, .channels = 3, .patch = 16, .classes = 1000};
  return {{"vit-tiny-cifar", sized(VitSizes{.side = 32, .channels = 3, .patch = 4, .classes = 10}, 128, 4, 4, 256)},
          {"vit-base-16", sized(imagenet, 768, 12, 12, 3072)},
          {"vit-large-16", sized(imagenet, 1024, 24, 16, 4096)},
          {"vit-huge-16", sized(imagenet, 1280, 32, 16, 5120)}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const std::string attention = "attention.attention.", embeddings = "vit.embeddings.";
  return names_in_folder(
      s, {.outside = {{.ours = "class_token.weight", .parts = {embeddings + "cls_token"}, .leading_ones = 1},
                      {.ours = "positions.weight", .parts = {embeddings + "position_embeddings"}, .leading_ones = 1},
                      {"patches", {embeddings + "patch_embeddings.projection"}},
                      {"norm", {"vit.layernorm"}},
                      {"head", {"classifier"}}},
          .blocks = "vit.encoder.layer.",
          .in_block = {{"norm_1", {"layernorm_before"}},
                       {"attention.qkv", {attention + "query", attention + "key", attention + "value"}},
                       {"attention.out", {"attention.output.dense"}},
                       {"norm_2", {"layernorm_after"}},
                       {"mlp.up", {"intermediate.dense"}},
                       {"mlp.down", {"output.dense"}}}});
}

ModelShape from_json(const nlohmann::json& j) {
  const Classes known = classes_of(j);
  const FolderConfig c(j, "ViT");
  const VitSizes image{.side = c.at<int64_t>("image_size"),
                       .channels = c.value("num_channels", int64_t{3}),
                       .patch = c.at<int64_t>("patch_size"),
                       .classes = known.count,
                       .class_names = known.names};
  require(image.side > 0 && image.side <= kLargestSide, "model", "image_size must be in [1, ", kLargestSide, "]: got ",
          image.side);
  ModelShape s = sized(image, c.at<int64_t>("hidden_size"), c.at<int64_t>("num_hidden_layers"),
                       std::max<int64_t>(1, c.at<int64_t>("num_attention_heads")), c.at<int64_t>("intermediate_size"));
  s.heads = s.kv_heads = c.at<int64_t>("num_attention_heads");  // whatever they are: validate() refuses
  s.norm_epsilon = c.value("layer_norm_eps", 1e-12);
  s.dropout = c.value("hidden_dropout_prob", 0.0);
  c.must_be("hidden_act", "gelu");
  c.must_be("qkv_bias", true);
  return s;
}

nlohmann::json to_json(const ModelShape& s) {
  const auto image = s.own.as<VitSizes>();
  nlohmann::json j{{"architectures", {"ViTForImageClassification"}},
                   {"model_type", "vit"},
                   {"image_size", image.side},
                   {"patch_size", image.patch},
                   {"num_channels", image.channels},
                   {"hidden_size", s.hidden},
                   {"num_hidden_layers", s.layers},
                   {"num_attention_heads", s.heads},
                   {"intermediate_size", s.ffn},
                   {"hidden_act", "gelu"},
                   {"layer_norm_eps", s.norm_epsilon},
                   {"hidden_dropout_prob", s.dropout},
                   {"attention_probs_dropout_prob", 0.0},
                   {"qkv_bias", true}};
  write_classes({image.classes, image.class_names}, j);
  return j;
}

}  // namespace vit

Architecture vit_architecture() {
  using namespace vit;
  return {.name = "vit",
          .own = VitSizes{},
          .presets = presets(),
          .make = make,
          .task = task,
          .settle = settle,
          .hugging_face = {.model_type = "vit",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .prefix = "vit.",
                           .ignored = {"vit.pooler.*", "pooler.*"}}};
}

}  // namespace colossal::models
