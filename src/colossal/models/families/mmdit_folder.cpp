// The transformers of Stable Diffusion 3 and of FLUX as diffusers stores them.
#include <c10/util/ArrayRef.h>

#include <array>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/diffusers_config.h"
#include "colossal/models/families/mmdit.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {

namespace mmdit {

constexpr const char *kSd3 = "SD3Transformer2DModel", *kFlux = "FluxTransformer2DModel";
constexpr double kEpsilon = 1e-6;  // of the norms of blocks, which is no key there
constexpr int64_t kFluxPatch = 2;  // in which FLUX's pipeline packs a latent

using Rows = std::vector<nn::ExternalRows>;

/// Returns the rows of heads whose features turn in pairs of neighbours there, and in pairs with the other half of an
/// axis here (heads_of_pairs() with several axes).
Rows turned(const char* tensor, int64_t heads, const std::vector<int64_t>& axes) {
  if (axes.empty()) return {tensor};
  Rows rows;
  int64_t first = 0;
  for (int64_t head = 0; head < heads; ++head)
    for (const int64_t features : axes) {
      for (const int64_t of_pair : {0, 1}) rows.emplace_back(tensor, first + of_pair, features / 2, 2);
      first += features;
    }
  return rows;
}

/// Returns the rows of the parameters `ours`.qkv, .q_norm and .k_norm, of tensors with these names.
std::vector<nn::ExternalName> heads_rows(const ModelShape& s, const std::string& ours,
                                         const std::array<const char*, 5>& theirs) {
  const auto axes = s.own.as<MmditSizes>().axes;
  Rows qkv = turned(theirs[0], s.heads, axes);
  for (const nn::ExternalRows& row : turned(theirs[1], s.heads, axes)) qkv.push_back(row);
  if (axes.empty())
    qkv.emplace_back(theirs[2]);
  else
    qkv.emplace_back(theirs[2], 0, s.hidden);
  return {{ours + ".qkv", qkv},
          {ours + ".q_norm", turned(theirs[3], 1, axes)},
          {ours + ".k_norm", turned(theirs[4], 1, axes)}};
}

/// Returns the halves of a modulation whose scale comes first there, and whose shift comes first here.
Rows swapped(const char* tensor, int64_t hidden) { return {{tensor, hidden, hidden}, {tensor, 0, hidden}}; }

std::vector<nn::ExternalName> names(const ModelShape& s, std::vector<nn::ExternalName> outside) {
  FolderNames table{.outside = std::move(outside)};
  const auto add = [](std::vector<nn::ExternalName>& to, const std::vector<nn::ExternalName>& rows) {
    to.insert(to.end(), rows.begin(), rows.end());
  };
  const char* embedder = "time_text_embed.";
  add(table.outside, {{"time.linear_1", {concat(embedder, "timestep_embedder.linear_1")}},
                      {"time.linear_2", {concat(embedder, "timestep_embedder.linear_2")}},
                      {"guidance.linear_1", {concat(embedder, "guidance_embedder.linear_1")}},
                      {"guidance.linear_2", {concat(embedder, "guidance_embedder.linear_2")}},
                      {"pooled.linear_1", {concat(embedder, "text_embedder.linear_1")}},
                      {"pooled.linear_2", {concat(embedder, "text_embedder.linear_2")}},
                      {"text", {"context_embedder"}},
                      {"norm.modulation", swapped("norm_out.linear", s.hidden)}});
  const int64_t doubles = s.layers - s.own.as<MmditSizes>().single;
  for (int64_t i = 0; i < s.layers; ++i)
    table.each_block.push_back(i < doubles ? concat("transformer_blocks.", i, ".")
                                           : concat("single_transformer_blocks.", i - doubles, "."));
  table.in_block = {{"patches.modulation", {"norm1.linear"}},
                    {"patches.attention.out", {"attn.to_out.0"}},
                    {"patches.mlp.up", {"ff.net.0.proj"}},
                    {"patches.mlp.down", {"ff.net.2"}},
                    {"text.modulation", {"norm1_context.linear"}},
                    {"text.end.modulation", swapped("norm1_context.linear", s.hidden)},
                    {"text.attention.out", {"attn.to_add_out"}},
                    {"text.mlp.up", {"ff_context.net.0.proj"}},
                    {"text.mlp.down", {"ff_context.net.2"}},
                    {"modulation", {"norm.linear"}},
                    {"mlp.up", {"proj_mlp"}},
                    {"out", {"proj_out"}}};
  const std::array<const char*, 5> own{"attn.to_q", "attn.to_k", "attn.to_v", "attn.norm_q", "attn.norm_k"};
  add(table.in_block, heads_rows(s, "patches.attention", own));
  add(table.in_block, heads_rows(s, "attention", own));
  add(table.in_block,
      heads_rows(s, "text.attention",
                 {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.norm_added_q", "attn.norm_added_k"}));
  return names_in_folder(s, table);
}

/// Checks the sizes that keys of both classes give.
void check_common(const FolderKeys& k, const ModelShape& s, const MmditSizes& own) {
  check_sizes_read(k, {{"attention_head_dim", s.head_dim},
                       {"num_attention_heads", s.heads},
                       {"joint_attention_dim", own.text},
                       {"pooled_projection_dim", own.pooled}});
}

/// The sizes that follow from the keys of both classes.
void set_common(ModelShape& s) {
  s.hidden = s.heads * s.head_dim;
  s.kv_heads = s.heads;
  s.ffn = 4 * s.hidden;
  s.norm_epsilon = kEpsilon;
  s.tied = false;
}

/// The row of norms of queries and keys, which are null or "rms_norm".
void qk_norm_key(FolderKeys& k, MmditSizes& own) {
  k.only("qk_norm", "rms_norm");
  if (k.reads()) own.head_norms = k.config().has("qk_norm");
  k.written("qk_norm", own.head_norms ? nlohmann::json("rms_norm") : nlohmann::json());
}

/// The row of the channels that are predicted, which are those that are read.
void out_channels_key(FolderKeys& k, int64_t in, int64_t otherwise) {
  int64_t out = in;
  k.or_null("out_channels", out, otherwise);
  require(out == 0 || out == in, "model", "out_channels must be in_channels: got ", out, " and ", in,
          "; models that read a mask or a further picture are not known");
}

void sd3_keys(FolderKeys& k, ModelShape& s, MmditSizes& own) {
  k.optional("sample_size", own.height, 128);
  k.optional("patch_size", own.patch, 2);
  k.optional("in_channels", own.channels, 16);
  k.optional("num_layers", s.layers, 18);
  k.optional("attention_head_dim", s.head_dim, 64);
  k.optional("num_attention_heads", s.heads, 18);
  k.optional("joint_attention_dim", own.text, 4096);
  k.optional("pooled_projection_dim", own.pooled, 2048);
  k.optional("pos_embed_max_size", own.table, 96);
  k.fixed("dual_attention_layers", nlohmann::json::array());  // of Stable Diffusion 3.5 medium
  qk_norm_key(k, own);
  out_channels_key(k, own.channels, 16);
  check_common(k, s, own);
  check_sizes_read(k, {{"sample_size", own.height},
                       {"patch_size", own.patch},
                       {"in_channels", own.channels},
                       {"pos_embed_max_size", own.table}});
  int64_t projected = s.heads * s.head_dim;
  k.optional("caption_projection_dim", projected, 1152);
  require(projected == s.heads * s.head_dim, "model", "caption_projection_dim must be the hidden size, ",
          s.heads * s.head_dim, ": got ", projected);
  if (!k.reads()) return;
  own.width = own.height;
  set_common(s);
}

void flux_keys(FolderKeys& k, ModelShape& s, MmditSizes& own) {
  constexpr int64_t kCells = kFluxPatch * kFluxPatch;
  int64_t in = own.channels * kCells, doubles = s.layers - own.single;
  if (k.reads()) own = flux_sizes();
  k.fixed("patch_size", 1);  // of what the pipeline has packed
  k.optional("in_channels", in, 64);
  out_channels_key(k, in, 0);
  k.optional("num_layers", doubles, 19);
  k.optional("num_single_layers", own.single, 38);
  k.optional("attention_head_dim", s.head_dim, 128);
  k.optional("num_attention_heads", s.heads, 24);
  k.optional("joint_attention_dim", own.text, 4096);
  k.optional("pooled_projection_dim", own.pooled, 768);
  k.optional("guidance_embeds", own.told_guidance, false);
  if (k.reads() && own.told_guidance) own.text_tokens = 512;
  k.optional("axes_dims_rope", own.axes, {16, 56, 56});
  if (!k.reads()) return;
  check_common(k, s, own);
  require(in > 0 && in % kCells == 0, "model", "in_channels must be divisible by the ", kCells,
          " cells of a patch: got ", in);
  require(own.single > 0, "model", "num_single_layers must be 1 or more: got ", own.single);
  own.channels = in / kCells;
  s.layers = doubles + own.single;
  set_common(s);
}

using Keys = void (*)(FolderKeys&, ModelShape&, MmditSizes&);

ModelShape from_diffusers(const nlohmann::json& config, const char* class_name, const char* architecture, Keys keys) {
  nlohmann::json known;  // the keys that are written are those that the class has
  FolderKeys writer(known);
  ModelShape example;
  MmditSizes sizes;
  keys(writer, example, sizes);
  check_diffusers_config(config, class_name, known);
  return settled(read_folder(FolderConfig(config, class_name), keys), architecture);
}

/// Refuses a value with which diffusers computes other numbers.
template <class Rule, class Got>
void check_written(bool is_right, const char* key, const Rule& rule, const Got& got) {
  require(is_right, "model", "diffusers computes this model only with ", key, " = ", rule, ": got ", got,
          "; train the model with that value");
}

nlohmann::json to_diffusers(const ModelShape& shape, const char* class_name, Keys keys) {
  check_written(shape.ffn == 4 * shape.hidden, "ffn", concat("4 * hidden, ", 4 * shape.hidden), shape.ffn);
  check_written(shape.norm_epsilon == kEpsilon, "norm_epsilon", kEpsilon, shape.norm_epsilon);
  auto own = shape.own.as<MmditSizes>();
  check_written(own.frames == 0, "frames", 0, own.frames);
  nlohmann::json j{{"_class_name", class_name}, {"_diffusers_version", "0.42.1"}};
  FolderKeys k(j);
  ModelShape written = shape;
  keys(k, written, own);
  return j;
}

}  // namespace mmdit

std::vector<nn::ExternalName> sd3_diffusers_names(const ModelShape& shape) {
  nn::ExternalName table{"positions", {"pos_embed.pos_embed"}};
  table.leading_ones = 1;
  return mmdit::names(shape, {{"patches", {"pos_embed.proj"}}, table, {"head", {"proj_out"}}});
}

std::vector<nn::ExternalName> flux_diffusers_names(const ModelShape& shape) {
  // The channels of a cell are next to each other in our predictions, and the cells of a channel in theirs.
  const auto own = shape.own.as<MmditSizes>();
  mmdit::Rows head;
  for (int64_t cell = 0; cell < own.patch * own.patch; ++cell)
    head.emplace_back("proj_out", cell, own.channels, own.patch * own.patch);
  return mmdit::names(shape, {{"patches", {"x_embedder"}}, {"head", head}});
}

ModelShape sd3_from_diffusers(const nlohmann::json& config) {
  return mmdit::from_diffusers(config, mmdit::kSd3, "sd3", mmdit::sd3_keys);
}

ModelShape flux_from_diffusers(const nlohmann::json& config) {
  return mmdit::from_diffusers(config, mmdit::kFlux, "flux", mmdit::flux_keys);
}

nlohmann::json sd3_to_diffusers(const ModelShape& shape) {
  const auto own = shape.own.as<MmditSizes>();
  mmdit::check_written(own.height == own.width, "width", concat("height, ", own.height), own.width);
  mmdit::check_written(own.table > 0, "table", "1 or more", own.table);
  mmdit::check_written(own.single == 0, "single", 0, own.single);
  mmdit::check_written(own.axes.empty(), "axes", "[]", at::IntArrayRef(own.axes));
  mmdit::check_written(!own.told_guidance, "told_guidance", "false", "true");
  return mmdit::to_diffusers(shape, mmdit::kSd3, mmdit::sd3_keys);
}

nlohmann::json flux_to_diffusers(const ModelShape& shape) {
  const auto own = shape.own.as<MmditSizes>();
  mmdit::check_written(own.patch == mmdit::kFluxPatch, "patch", mmdit::kFluxPatch, own.patch);
  mmdit::check_written(own.table == 0, "table", 0, own.table);
  mmdit::check_written(own.single > 0, "single", "1 or more", own.single);
  mmdit::check_written(own.axes.size() == 3, "axes", "those of frame, row and column", at::IntArrayRef(own.axes));
  mmdit::check_written(own.head_norms, "head_norms", "true", "false");
  return mmdit::to_diffusers(shape, mmdit::kFlux, mmdit::flux_keys);
}

}  // namespace colossal::models
