#include "colossal/models/families/clip_text.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/clip_text_words.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/transformer_block.h"
#include "colossal/nn/embedding.h"
#include "colossal/nn/forward_context.h"
#include "colossal/nn/linear_layers.h"
#include "colossal/nn/norm.h"
#include "colossal/nn/outputs.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

void ClipTextSizes::fields(Fields& f) {
  activation_field(f, activation);
  f.integer("projection", projection, "", "features of the projection of pooled states; 0 = none", 0, kMaxSize);
  f.integer("end_id", end_id, "", "id of the token that is pooled; 2 = the token of the largest id is", 0, kMaxSize);
}

namespace {

/// Makes the vectors of learned words. Returns what embeds ids of tokens and of words.
Embed::OfOne with_learned(const ModelShape& s, const ClipTextPlace& place, const std::shared_ptr<nn::Embedding>& tokens,
                          const std::shared_ptr<nn::Embedding>& positions, nn::Layers& layers) {
  const std::string name = place.outside + "learned";
  const std::shared_ptr<nn::Embedding> words = layers.positions(name, learned_rows(s), s.hidden, 0);
  words->weight().is_added = true;
  return [=, first = s.vocabulary, field = place.ids, part = layers.field_part()](const tensor::Batch& batch,
                                                                                  const nn::ForwardContext& step) {
    const at::Tensor& ids = batch.at(field);
    const at::Tensor own = words->forward((ids - first).clamp_min(0), step),
                     others = tokens->forward(ids.clamp_max(first - 1), step);
    // at::where() cannot run on sizes alone.
    const at::Tensor is_word = part(batch.field(field), step).ge(first).unsqueeze(-1).to(own.scalar_type());
    return own * is_word + others * (1 - is_word) + positions->forward(step.positions, step);
  };
}

}  // namespace

Embed::OfOne make_clip_text_embedding(const ModelShape& s, const ClipTextPlace& place, nn::Layers& layers) {
  std::shared_ptr<nn::Embedding> tokens =
      layers.embedding(place.outside + "embedding", s.vocabulary, s.hidden, kDeviation);
  std::shared_ptr<nn::Embedding> positions =
      layers.positions(place.outside + "positions", s.positions, s.hidden, kDeviation / 2);
  if (learned_rows(s) > 0) return with_learned(s, place, tokens, positions, layers);
  return [=, field = place.ids](const tensor::Batch& batch, const nn::ForwardContext& step) {
    return tokens->forward(batch.at(field), step) + positions->forward(step.positions, step);
  };
}

ClipTextParts make_clip_text_blocks(const ModelShape& s, const ClipTextPlace& place, nn::Layers& layers) {
  ClipTextParts parts;
  const BlockVariant variant{.activation = ops::activation(s.own.as<ClipTextSizes>().activation).plain};
  Mixtures none;
  for (int64_t i = 0; i < s.layers; ++i)
    parts.blocks.push_back(make_transformer_block(concat("blocks.", place.first_block + i), s, variant, layers, none));
  if (place.norm.empty()) return parts;
  std::shared_ptr<nn::Norm> norm = layers.layer_norm(place.norm, s.hidden, {s.norm_epsilon});
  parts.norm = [norm](const at::Tensor& x, const nn::ForwardContext&) { return norm->forward(x); };
  return parts;
}

ClipTextParts make_clip_text(const ModelShape& s, const ClipTextPlace& place, nn::Layers& layers) {
  const Embed::OfOne embed = make_clip_text_embedding(s, place, layers);
  ClipTextParts parts = make_clip_text_blocks(s, place, layers);
  parts.embed = embed;
  return parts;
}

namespace clip_text {  // a namespace of its own, because every family has functions of these names

constexpr const char *kClass = "CLIPTextModel", *kProjected = "CLIPTextModelWithProjection";
constexpr int64_t kProjection = 512;  // projection_dim of the classes of transformers

/// The model is trained with a denoiser or not at all, so it names no objective.
Task task(const ModelShape&) { return {.writes = Writes::Nothing, .objective = ""}; }

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  refuse_free_heads(s, "a CLIP text encoder");
  require(s.dropout == 0, "model", "a CLIP text encoder has no dropout: got ", s.dropout, "; set model.dropout = 0");
  const auto own = s.own.as<ClipTextSizes>();
  s.tied = false;
  s.set(TextEncoderSizes{.features = s.hidden, .projection = own.projection, .end_id = own.end_id});
}

/// The projection of the tokens, which every rank has whole.
State projected_state(int64_t features) {
  using tensor::Dim;
  return {.name = "projected",
          .dims = {Dim::Row, Dim::Other, Dim::Other},
          .sizes = [features](const nn::ForwardContext& step, int64_t) -> std::vector<int64_t> {
            return {step.batch->rows(), step.batch->tokens(), features};
          }};
}

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  model.fields = {"ids", "positions"};
  const ClipTextParts parts = make_clip_text(s, {}, layers);
  model.embed = parts.embed;
  for (const Block::OfOne& block : parts.blocks) model.blocks.emplace_back(block);
  const int64_t features = s.own.as<ClipTextSizes>().projection;
  if (features == 0) {
    model.norm = parts.norm;
    return model;
  }
  model.states = {hidden_state(s.hidden, s.positions), projected_state(features)};
  std::shared_ptr<nn::Outputs> projection =
      layers.outputs("head.projection", s.hidden, features, {.bias = false, .deviation = kDeviation});
  const auto end = [norm = parts.norm, projection](States& states, const nn::ForwardContext& step) {
    states[0] = norm(states[0], step);
    states[1] = projection->forward(states[0], step);
  };
  model.norm = models::Block({0}, {0, 1}, end);
  return model;
}

ModelShape sized(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, const ClipTextSizes& own) {
  return {.vocabulary = vocabulary,
          .hidden = hidden,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / std::max<int64_t>(1, heads),  // validate() refuses values that do not fit
          .ffn = 4 * hidden,
          .positions = 77,
          .tied = false,
          .own = own};
}

/// Returns toys for captions as bytes, the encoders of Stable Diffusion 1.5 (CLIP-L) and of 2.1, which is all of
/// OpenCLIP-H but its last layer, and the second one of SDXL. Those with a projection are the encoders of Stable
/// Diffusion 3.
std::vector<Preset> presets() {
  return {{"clip-text-tiny", sized(259, 64, 2, 4, {.end_id = 257})},
          {"clip-text-tiny-projected", sized(259, 32, 2, 4, {.activation = "gelu", .projection = 24, .end_id = 257})},
          {"clip-l", sized(49408, 768, 12, 12, {})},
          {"clip-l-projected", sized(49408, 768, 12, 12, {.projection = 768})},
          {"open-clip-h", sized(49408, 1024, 23, 16, {.activation = "gelu"})},
          {"open-clip-bigg", sized(49408, 1280, 32, 20, {.activation = "gelu", .projection = 1280})}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const std::string embeddings = "text_model.embeddings.";
  return names_in_folder(s,
                         {.outside = {{"embedding", {embeddings + "token_embedding"}},
                                      {"positions", {embeddings + "position_embedding"}},
                                      {"norm", {"text_model.final_layer_norm"}},
                                      {"head.projection", {"text_projection"}}},
                          .blocks = "text_model.encoder.layers.",
                          .in_block = {{"norm_1", {"layer_norm1"}},
                                       {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                                       {"attention.out", {"self_attn.out_proj"}},
                                       {"norm_2", {"layer_norm2"}},
                                       {"mlp.up", {"mlp.fc1"}},
                                       {"mlp.down", {"mlp.fc2"}}}});
}

/// Returns the tensors of a whole CLIP that its text encoder does not have.
std::vector<IgnoredTensor> left_out(const ModelShape&) {
  const std::string reason = "the encoder of pictures, which a text encoder does not have";
  return {{"vision_model.*", reason}, {"visual_projection.weight", reason}, {"logit_scale", reason}};
}

void keys(FolderKeys& k, ModelShape& s, ClipTextSizes& own) {
  k.optional("vocab_size", s.vocabulary, 49408);
  k.optional("hidden_size", s.hidden, 512);
  k.optional("num_hidden_layers", s.layers, 12);
  k.optional("num_attention_heads", s.heads, 8);
  if (k.reads()) s = sized(s.vocabulary, s.hidden, s.layers, s.heads, own);
  k.optional("intermediate_size", s.ffn, 2048);
  k.optional("max_position_embeddings", s.positions, 77);
  k.optional("layer_norm_eps", s.norm_epsilon, 1e-5);
  activation_key(k, "hidden_act", own.activation, "quick_gelu");
  k.optional("eos_token_id", own.end_id, 49407);
  k.only("use_attention_mask", false);  // of a pipeline of diffusers, which then masks padding
  k.written("attention_dropout", 0.0);
}

/// Reads the config of a text encoder, or that of a whole CLIP, whose text encoder has a projection.
ModelShape from_json(const nlohmann::json& j) {
  const FolderConfig config(j, "CLIP text encoder");
  const bool is_whole = config.value("model_type", "") == "clip";
  ModelShape s = read_folder(is_whole ? config.object("text_config") : config, keys);
  const auto classes = config.value("architectures", nlohmann::json::array());
  if (is_whole || std::find(classes.begin(), classes.end(), kProjected) != classes.end()) {
    auto own = s.own.as<ClipTextSizes>();
    own.projection = config.value("projection_dim", kProjection);
    require(own.projection > 0, "model", "projection_dim of a CLIP text encoder must be positive: got ",
            own.projection);
    s.own = own;
  }
  return s;
}

nlohmann::json to_json(const ModelShape& s) {
  const int64_t features = s.own.as<ClipTextSizes>().projection;
  nlohmann::json j = write_folder("clip_text_model", features > 0 ? kProjected : kClass, s, keys);
  j["projection_dim"] = features > 0 ? features : s.hidden;
  return j;
}

}  // namespace clip_text

Architecture clip_text_architecture() {
  using namespace clip_text;
  return {.name = "clip_text",
          .own = ClipTextSizes{},
          .presets = presets(),
          .make = make,
          .task = task,
          .settle = settle,
          .hugging_face = {.model_type = "clip_text_model",
                           .also = {"clip"},
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = refuse_attention_dropout,
                           .prefix = "text_model.",
                           .ignored = {{"text_model.embeddings.position_ids", "positions are counted"},
                                       {"embeddings.position_ids", "positions are counted"}},
                           .left_out = left_out}};
}

}  // namespace colossal::models
