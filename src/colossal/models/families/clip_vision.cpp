#include "colossal/models/families/clip_vision.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/image_encoder.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/nn/patches.h"
#include "colossal/nn/vector.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

void ClipVisionSizes::fields(Fields& f) {
  constexpr int64_t kLargest = 1 << 16;
  f.integer("side", side, "pixels", "side of the square pictures", 1, kLargest);
  f.integer("patch", patch, "pixels", "side of a patch", 1, kLargest);
  f.integer("projection", projection, "features", "width of the embedding of a picture", 1, kMaxSize);
  activation_field(f, activation);
}

namespace clip_vision {  // a namespace of its own, because every family has functions of these names

constexpr const char *kClass = "CLIPVisionModelWithProjection", *kType = "clip_vision_model";

/// The model serves an adapter of a denoiser and is not trained, so it names no objective.
Task task(const ModelShape&) { return {.reads = Reads::Fields, .writes = Writes::Nothing, .objective = ""}; }

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  refuse_free_heads(s, "a CLIP vision encoder");
  require(s.dropout == 0, "model", "a CLIP vision encoder has no dropout: got ", s.dropout, "; set model.dropout = 0");
  const auto own = s.own.as<ClipVisionSizes>();
  require(own.projection > 0 && own.patch > 0, "model", "projection and patch must be positive: got ", own.projection,
          " and ", own.patch);
  require(own.side > 0 && own.side % own.patch == 0, "model", "side must be divisible by patch: got side ", own.side,
          ", patch ", own.patch);
  s.positions = 1 + own.patches();
  s.tied = false;
  s.set(ImageEncoderSizes{.features = own.projection, .side = own.side});
}

/// The class token and the patches, with their positions, after a norm.
class Tokens {
 public:
  Tokens(const ModelShape& s, nn::Layers& make) : tokens_(make.own_tokens()) {
    const auto own = s.own.as<ClipVisionSizes>();
    shape_ = {kPictureChannels, own.side, own.side, own.patch};
    const double of_patch = 1 / std::sqrt(static_cast<double>(kPictureChannels * own.patch * own.patch));
    weight_ = make.vector("patches.weight", {s.hidden, kPictureChannels, own.patch, own.patch},
                          {.init = nn::Init::normal(of_patch), .decay = true});
    class_ = make.vector("class_token.weight", {s.hidden}, {.init = nn::Init::normal(kDeviation), .decay = true});
    positions_ = make.positions("positions", s.positions, s.hidden, kDeviation);
    norm_ = make.layer_norm("norm_before", s.hidden, {s.norm_epsilon});
    dtype_ = make.parameters().options().dtype;
  }

  at::Tensor forward(const tensor::Batch& batch, const nn::ForwardContext& step) const {
    const at::Tensor& pictures = batch.at(kPixelsToEncode);
    const at::Tensor patches = nn::cut_patches(tokens_(step).rows_of(pictures).to(dtype_), shape_),
                     first = class_->value().expand({patches.size(0), 1, -1}),
                     x = at::cat({first, nn::linear(patches, weight_->value().flatten(1), {})}, 1);
    const at::Tensor ids = at::arange(x.size(1), at::TensorOptions(pictures.device()).dtype(at::kLong));
    return norm_->forward(x + positions_->forward(ids.expand({pictures.size(0), -1}), step));
  }

 private:
  nn::OwnTokens tokens_;
  nn::PatchShape shape_{};
  std::unique_ptr<nn::Vector> weight_, class_;
  std::unique_ptr<nn::Embedding> positions_;
  std::unique_ptr<nn::Norm> norm_;
  at::ScalarType dtype_{};
};

Model make(const ModelShape& s, nn::Layers& layers) {
  require(!layers.splits_tokens(), "parallel",
          "a CLIP vision encoder must have all tokens of a picture on one rank: got a layout that splits them; leave "
          "out parallel.sequence and parallel.tensor.sequence");
  const auto own = s.own.as<ClipVisionSizes>();
  Model model;
  model.fields = {kPixelsToEncode};
  const auto tokens = std::make_shared<const Tokens>(s, layers);
  model.embed = [tokens](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch, step);
  };
  add_transformer_blocks(model, s,
                         {.activation = ops::activation(own.activation).plain, .attention = {.causal = false}}, layers);
  std::shared_ptr<nn::Norm> norm = layers.layer_norm("norm", s.hidden, {s.norm_epsilon});
  std::shared_ptr<nn::Outputs> projection =
      layers.outputs("head.projection", s.hidden, own.projection, {.bias = false, .deviation = kDeviation});
  // A norm treats each token separately, and the projection reads the class token alone.
  model.norm = [norm, projection](const at::Tensor& x, const nn::ForwardContext& step) {
    return projection->forward(norm->forward(x.narrow(1, 0, 1)), step);
  };
  return model;
}

ModelShape sized(int64_t hidden, int64_t layers, int64_t heads, const ClipVisionSizes& own) {
  return {.hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / std::max<int64_t>(1, heads),  // validate() refuses values that do not fit
          .ffn = 4 * hidden,
          .norm_epsilon = 1e-5,
          .tied = false,
          .own = own};
}

/// Returns a toy for pictures of 32 pixels, and the encoder of IP-adapters (OpenCLIP's ViT-H/14).
std::vector<Preset> presets() {
  return {{"clip-vision-tiny", sized(32, 2, 4, {.side = 32, .patch = 8, .projection = 24})},
          {"clip-vision-h", sized(1280, 32, 16, {.projection = 1024})}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const std::string prefix = "vision_model.", embeddings = prefix + "embeddings.";
  return names_in_folder(s,
                         {.outside = {{"class_token.weight", {embeddings + "class_embedding"}},
                                      {"patches", {embeddings + "patch_embedding"}},
                                      {"positions", {embeddings + "position_embedding"}},
                                      {"norm_before", {prefix + "pre_layrnorm"}},
                                      {"norm", {prefix + "post_layernorm"}},
                                      {"head.projection", {"visual_projection"}}},
                          .blocks = prefix + "encoder.layers.",
                          .in_block = {{"norm_1", {"layer_norm1"}},
                                       {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                                       {"attention.out", {"self_attn.out_proj"}},
                                       {"norm_2", {"layer_norm2"}},
                                       {"mlp.up", {"mlp.fc1"}},
                                       {"mlp.down", {"mlp.fc2"}}}});
}

void keys(FolderKeys& k, ModelShape& s, ClipVisionSizes& own) {
  k.optional("hidden_size", s.hidden, 768);
  k.optional("num_hidden_layers", s.layers, 12);
  k.optional("num_attention_heads", s.heads, 12);
  if (k.reads()) s = sized(s.hidden, s.layers, s.heads, own);
  k.optional("intermediate_size", s.ffn, 3072);
  k.fixed("num_channels", kPictureChannels);
  k.optional("image_size", own.side, 224);
  k.optional("patch_size", own.patch, 32);
  k.optional("projection_dim", own.projection, 512);
  k.optional("layer_norm_eps", s.norm_epsilon, 1e-5);
  activation_key(k, "hidden_act", own.activation, "quick_gelu");
  k.written("attention_dropout", 0.0);
  check_sizes_read(k, {{"image_size", own.side}, {"patch_size", own.patch}, {"projection_dim", own.projection}});
}

ModelShape from_json(const nlohmann::json& j) {
  const FolderConfig config(j, "CLIP vision encoder");
  const auto classes = config.value("architectures", nlohmann::json::array({kClass}));
  require(std::find(classes.begin(), classes.end(), kClass) != classes.end(), "model",
          "a CLIP vision encoder must be of the class ", kClass, ", because its projection is read: got ",
          classes.dump());
  return read_folder(config, keys);
}

nlohmann::json to_json(const ModelShape& s) { return write_folder(kType, kClass, s, keys); }

}  // namespace clip_vision

Architecture clip_vision_architecture() {
  using namespace clip_vision;
  return {.name = "clip_vision",
          .own = ClipVisionSizes{.projection = 1024},
          .presets = presets(),
          .make = make,
          .task = task,
          .settle = settle,
          .hugging_face = {.model_type = kType,
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = refuse_attention_dropout,
                           .prefix = "vision_model.",
                           .ignored = {{"vision_model.embeddings.position_ids", "positions are counted"},
                                       {"embeddings.position_ids", "positions are counted"}}}};
}

}  // namespace colossal::models
