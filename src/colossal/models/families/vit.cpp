#include "colossal/models/families/vit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/class_names.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/dropout.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/loss_head.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/patches.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/cross_entropy.h"

namespace colossal::models {

void VitSizes::fields(Fields& f) {
  f.integer("side", side, "pixels", "side of the square images", 1, kMaxSide);
  f.integer("channels", channels, "channels", "number of color channels of the images", 1, kMaxSize);
  f.integer("patch", patch, "pixels", "side of a patch", 1, kMaxSide);
  f.integer("classes", classes, "classes", "number of classes", 1, kMaxClasses);
  f.texts("class_names", class_names, "names of the classes, in order; empty = numbers only");
  activation_field(f, activation);
  f.flag("qkv_bias", qkv_bias, "bias in the projection to queries, keys and values");
  f.flag("distillation_head", distillation_head,
         "second head that reads the distillation token (deit); the logits are the mean of both heads");
}

namespace vit {  // a namespace of its own, because every family has functions of these names

/// The differences between the two families.
struct Kind {
  const char *family, *model_type, *transformers_class;
  int64_t class_tokens;
};
constexpr Kind kVit{"ViT", "vit", "ViTForImageClassification", 1};
constexpr Kind kDeit{"DeiT", "deit", "DeiTForImageClassification", 2};
constexpr const char* kScoreDropout = "attention_probs_dropout_prob";
constexpr const char* kWithTeacher = "DeiTForImageClassificationWithTeacher";  // a DeiT with two heads

Task task(const ModelShape& s) {
  const auto image = s.own.as<VitSizes>();
  return {.reads = Reads::Images,
          .writes = Writes::Nothing,
          .objective = "class",
          .classes = image.classes,
          .class_names = image.class_names,
          .channels = image.channels,
          .side = image.side};
}

/// Sets the positions to the number of class tokens plus patches.
template <const Kind& kind>
void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  const auto image = s.own.as<VitSizes>();
  const std::pair<const char*, int64_t> sizes[] = {
      {"side", image.side}, {"channels", image.channels}, {"patch", image.patch}, {"classes", image.classes}};
  for (const auto& [name, size] : sizes) require(size > 0, "model", name, " must be positive: got ", size);
  require(image.side % image.patch == 0, "model", "side must be divisible by patch: got side ", image.side, ", patch ",
          image.patch);
  check_class_names({image.classes, image.class_names});
  require(kind.class_tokens == 2 || !image.distillation_head, "model", "distillation_head must be false for a ",
          kind.family, ", which has no distillation token; name a deit");
  s.positions = kind.class_tokens + image.patches();
}

/// The mean of two classifiers, one for the class token and one for the distillation token after it. Every rank has the
/// logits of the whole batch, so it computes the whole loss. Communication: LossHead::logits() of both.
class MeanHead : public nn::LossHead {
 public:
  MeanHead(std::shared_ptr<nn::LossHead> first, std::shared_ptr<nn::LossHead> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  at::Tensor loss_sum(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step) override {
    return ops::cross_entropy(logits(hidden, step).flatten(0, -2), labels.reshape({-1}));
  }
  at::Tensor found(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step) override {
    return logits(hidden, step).argmax(-1).eq(labels).sum();
  }
  ops::TokenScores scores(const at::Tensor& hidden, const at::Tensor& labels, const nn::ForwardContext& step,
                          const ops::ScoreOptions& options) override {
    return ops::token_scores(logits(hidden, step), labels, options);
  }
  at::Tensor logits(const at::Tensor& hidden, const nn::ForwardContext& step) override {
    return (first_->logits(hidden.narrow(1, 0, 1), step) + second_->logits(hidden.narrow(1, 1, 1), step)) / 2;
  }

 private:
  std::shared_ptr<nn::LossHead> first_, second_;
};

template <const Kind& kind>
Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"images"};
  const auto i = s.own.as<VitSizes>();
  // The heads read two tokens of an image, so a rank must have both.
  require(!i.distillation_head || !layers.splits_tokens(), "parallel",
          "a model with a distillation_head must have all tokens of an image on one rank: got a layout that splits "
          "tokens; set parallel.sequence.size = 1 and parallel.tensor.sequence = false");
  // The scale of pixels is kept: pixels have variance 1, and with this deviation a sum over a patch has variance 1,
  // too.
  const double of_patch = 1 / std::sqrt(static_cast<double>(i.channels * i.patch * i.patch));
  std::shared_ptr<nn::PatchEmbedding> patches =
      layers.patch_embedding("patches", {i.channels, i.side, i.side, i.patch, kind.class_tokens}, s.hidden, of_patch,
                             "class_token", kDeviation);
  std::shared_ptr<nn::Embedding> positions = layers.positions("positions", s.positions, s.hidden, kDeviation);
  std::shared_ptr<nn::Dropout> dropout = layers.dropout("embedding.dropout", s.hidden, s.dropout);
  const at::ScalarType dtype = layers.parameters().options().dtype;
  model.embed = [=, count = s.positions](const tensor::Batch& batch, const nn::ForwardContext& step) {
    const at::Tensor& images = batch.at("images");
    const auto ids = at::TensorOptions(images.device()).dtype(at::kLong);
    const at::Tensor tokens = patches->forward(images.to(dtype), step);
    const at::Tensor where = at::arange(count, ids).expand({images.size(0), count});
    return dropout->forward(tokens + positions->forward(where, step), step);
  };
  add_transformer_blocks(
      model, s,
      {.activation = ops::activation(i.activation).plain, .bias = {.qkv = i.qkv_bias}, .attention = {.causal = false}},
      layers);
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  // Heads read only the class tokens. A norm treats each token separately, so norms of other tokens would be wasted.
  model.norm = [norm, heads = i.distillation_head ? 2 : 1](const at::Tensor& x, const nn::ForwardContext&) {
    return norm->forward(x.narrow(1, 0, heads));
  };
  model.head = layers.classifier("head", s.hidden, i.classes, kDeviation);
  if (i.distillation_head) {
    std::shared_ptr<nn::LossHead> other = layers.classifier("head.distillation", s.hidden, i.classes, kDeviation);
    model.head = std::make_shared<MeanHead>(std::move(model.head), std::move(other));
  }
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

/// Returns the presets: table 1 of the paper, with its distillation token; each size also for small images of 10
/// classes.
std::vector<Preset> deit_presets() {
  const VitSizes imagenet{.side = 224, .channels = 3, .patch = 16, .classes = 1000};
  return {{"deit-tiny-cifar", sized(VitSizes{.side = 32, .channels = 3, .patch = 4, .classes = 10}, 128, 4, 4, 256)},
          {"deit-tiny-16", sized(imagenet, 192, 12, 3, 768)},
          {"deit-small-16", sized(imagenet, 384, 12, 6, 1536)},
          {"deit-base-16", sized(imagenet, 768, 12, 12, 3072)}};
}

template <const Kind& kind>
std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const std::string prefix = concat(kind.model_type, "."), embeddings = prefix + "embeddings.",
                    attention = "attention.attention.";
  std::vector<nn::ExternalRows> class_tokens{{embeddings + "cls_token", 0, 1}};
  const bool has_two_heads = s.own.as<VitSizes>().distillation_head;
  if (kind.class_tokens == 2) class_tokens.emplace_back(embeddings + "distillation_token", 0, 1);
  return names_in_folder(
      s, {.outside = {{.ours = "class_token.weight", .parts = class_tokens, .leading_ones = 1},
                      {.ours = "positions.weight", .parts = {embeddings + "position_embeddings"}, .leading_ones = 1},
                      {"patches", {embeddings + "patch_embeddings.projection"}},
                      {"norm", {prefix + "layernorm"}},
                      {"head", {has_two_heads ? "cls_classifier" : "classifier"}},
                      {"head.distillation", {"distillation_classifier"}}},
          .blocks = prefix + "encoder.layer.",
          .in_block = {{"norm_1", {"layernorm_before"}},
                       {"attention.qkv", {attention + "query", attention + "key", attention + "value"}},
                       {"attention.out", {"attention.output.dense"}},
                       {"norm_2", {"layernorm_after"}},
                       {"mlp.up", {"intermediate.dense"}},
                       {"mlp.down", {"output.dense"}}}});
}

void keys(FolderKeys& k, ModelShape& s, VitSizes& image) {
  k.required("image_size", image.side);
  k.optional("num_channels", image.channels, 3);
  k.required("patch_size", image.patch);
  activation_key(k, "hidden_act", image.activation, "gelu");
  k.optional("qkv_bias", image.qkv_bias, true);
  require(image.side > 0 && image.side <= kMaxSide, "model", "image_size must be in [1, ", kMaxSide, "]: got ",
          image.side);
  require(image.patch <= 0 || image.side % image.patch == 0, "model",
          "image_size of config.json must be a multiple of patch_size: got ", image.side, " and ", image.patch);
  k.required("hidden_size", s.hidden);
  k.required("num_hidden_layers", s.layers);
  k.required("num_attention_heads", s.heads);
  if (k.reads()) s.kv_heads = s.heads;
  if (k.reads()) s.head_dim = s.hidden / std::max<int64_t>(1, s.heads);  // validate() refuses values that do not fit
  k.required("intermediate_size", s.ffn);
  k.optional("layer_norm_eps", s.norm_epsilon, 1e-12);
  k.optional("hidden_dropout_prob", s.dropout, 0.0);
  k.written(kScoreDropout, 0.0);
  s.tied = false;
}

template <const Kind& kind>
ModelShape from_json(const nlohmann::json& j) {
  const Classes known = classes_of(j);
  const FolderConfig c(j, kind.family);
  const auto made = c.value("architectures", std::vector<std::string>());
  ModelShape s = read_folder(c, keys);
  auto image = s.own.as<VitSizes>();
  image.classes = known.count;
  image.class_names = known.names;
  image.distillation_head = std::find(made.begin(), made.end(), kWithTeacher) != made.end();
  s.own = image;
  return s;
}

void check_training(const FolderConfig& c, const ModelShape&) { c.must_be_to_train(kScoreDropout, 0); }

template <const Kind& kind>
nlohmann::json to_json(const ModelShape& s) {
  const auto image = s.own.as<VitSizes>();
  nlohmann::json j =
      write_folder(kind.model_type, image.distillation_head ? kWithTeacher : kind.transformers_class, s, keys);
  write_classes({image.classes, image.class_names}, j);
  return j;
}

std::vector<IgnoredTensor> ignored_tensors(const std::string& name) {
  const std::string reason = "the head for classes reads the class token before the pooler";
  std::vector<IgnoredTensor> tensors;
  for (const std::string& prefix : {name + ".", std::string()})
    for (const char* tensor : {"pooler.dense.weight", "pooler.dense.bias"})
      tensors.push_back({prefix + tensor, reason});
  return tensors;
}

template <const Kind& kind>
Architecture architecture(std::vector<Preset> presets) {
  const std::string name = kind.model_type;
  return {.name = name,
          .own = VitSizes{},
          .presets = std::move(presets),
          .make = make<kind>,
          .task = task,
          .settle = settle<kind>,
          .hugging_face = {.model_type = name,
                           .names = external_names<kind>,
                           .from_json = from_json<kind>,
                           .to_json = to_json<kind>,
                           .check_training = check_training,
                           .prefix = name + ".",
                           .ignored = ignored_tensors(name)}};
}

}  // namespace vit

Architecture vit_architecture() { return vit::architecture<vit::kVit>(vit::presets()); }
Architecture deit_architecture() { return vit::architecture<vit::kDeit>(vit::deit_presets()); }

}  // namespace colossal::models
