// STDiT3 as Open-Sora 1.2 publishes it.
#include <utility>

#include "colossal/base/error.h"
#include "colossal/models/families/stdit.h"
#include "colossal/models/ffn_ratio.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {

namespace stdit {

/// The row of the sides of a patch, in time, height and width.
void patch_key(FolderKeys& k, StditSizes& own) {
  constexpr const char* kPatch = "patch_size";
  std::vector<int64_t> sides{1, own.patch, own.patch};
  k.optional(kPatch, sides, {1, 2, 2});
  require(sides.size() == 3 && sides[0] == 1 && sides[1] == sides[2], "model", kPatch,
          " must be 1 frame and two equal sides, as in [1, 2, 2]: got ", nlohmann::json(sides).dump());
  own.patch = sides[1];
}

void keys(FolderKeys& k, ModelShape& s, StditSizes& own) {
  int64_t pairs = s.layers / 2;
  double ratio = k.writes() ? ratio_of_ffn(s.ffn, s.hidden) : 0;
  k.optional("hidden_size", s.hidden, 1152);
  k.optional("depth", pairs, 28);
  k.optional("num_heads", s.heads, 16);
  k.optional("mlp_ratio", ratio, 4.0);
  k.optional("in_channels", own.channels, 4);
  patch_key(k, own);
  k.optional("pred_sigma", own.spare_outputs, true);
  k.optional("caption_channels", own.text, 4096);
  k.optional("model_max_length", own.tokens, 300);
  k.optional("input_sq_size", own.base_side, 512);
  k.fixed("qk_norm", true);
  k.fixed("skip_y_embedder", false);
  k.fixed("drop_path", 0.0);
  k.omitted("cell", own.cell, 8);  // no key of Open-Sora, whose caller gives the sides of frames in pixels
  k.omitted("norm_epsilon", s.norm_epsilon, 1e-6);  // nor is this, of the norms of blocks
  check_sizes_read(k, {{"hidden_size", s.hidden},
                       {"depth", pairs},
                       {"num_heads", s.heads},
                       {"in_channels", own.channels},
                       {"patch_size", own.patch},
                       {"caption_channels", own.text},
                       {"model_max_length", own.tokens},
                       {"input_sq_size", own.base_side},
                       {"cell", own.cell}});
  if (!k.reads()) return;
  s.layers = 2 * pairs;
  s.kv_heads = s.heads;
  s.head_dim = s.hidden / s.heads;
  s.ffn = ffn_of_ratio(ratio, s.hidden);
  s.tied = false;
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "STDiT3"), keys); }

nlohmann::json to_json(const ModelShape& s) { return write_folder("STDiT3", "STDiT3", s, keys); }

FolderNames table() {
  return {.outside = {{"patches", {"x_embedder.proj"}},
                      {"time.linear_1", {"t_embedder.mlp.0"}},
                      {"time.linear_2", {"t_embedder.mlp.2"}},
                      {"rate.linear_1", {"fps_embedder.mlp.0"}},
                      {"rate.linear_2", {"fps_embedder.mlp.2"}},
                      {"modulation", {"t_block.1"}},
                      {"null_text", {"y_embedder.y_embedding"}},
                      {"text.up", {"y_embedder.y_proj.fc1"}},
                      {"text.down", {"y_embedder.y_proj.fc2"}},
                      {"norm.modulation", {"final_layer.scale_shift_table"}},
                      {"head", {"final_layer.linear"}}},
          .in_block = {{"modulation", {"scale_shift_table"}},
                       {"attention.qkv", {"attn.qkv"}},
                       {"attention.q_norm", {"attn.q_norm"}},
                       {"attention.k_norm", {"attn.k_norm"}},
                       {"attention.out", {"attn.proj"}},
                       {"cross.q", {"cross_attn.q_linear"}},
                       {"cross.kv", {"cross_attn.kv_linear"}},
                       {"cross.out", {"cross_attn.proj"}},
                       {"mlp.up", {"mlp.fc1"}},
                       {"mlp.down", {"mlp.fc2"}}}};
}

std::vector<nn::ExternalName> names(const ModelShape& s) {
  FolderNames names = table();
  for (int64_t i = 0; i < s.layers; ++i)
    names.each_block.push_back(concat(i % 2 == 0 ? "spatial_blocks." : "temporal_blocks.", i / 2, "."));
  std::vector<nn::ExternalName> list = names_in_folder(s, names);
  for (nn::ExternalName& name : list) {
    // The folder rotates pairs of neighbours, ours pairs of a head's two halves.
    const std::string theirs = name.parts.front().name;
    if (!theirs.starts_with("temporal_blocks.")) continue;
    if (theirs.ends_with("_norm.weight")) name.parts = heads_of_pairs(theirs, 1, s.head_dim, s.head_dim);
    if (theirs.find(".attn.qkv.") == std::string::npos) continue;
    name.parts = heads_of_pairs(theirs, 2 * s.heads, s.head_dim, s.head_dim);  // of q, then of k
    name.parts.emplace_back(theirs, 2 * s.hidden, s.hidden);
  }
  return list;
}

}  // namespace stdit

HuggingFace stdit_folder() {
  return {.model_type = "STDiT3",
          .names = stdit::names,
          .from_json = stdit::from_json,
          .to_json = stdit::to_json,
          .ignored = {rotary_table("rope.freqs")},
          .own_training = {"frames", "height", "width"}};
}

}  // namespace colossal::models
