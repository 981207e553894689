// Open-Sora 2 as it is published: one file with the names of FLUX's makers, but with queries, keys and values in
// matrices of their own.
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/families/mmdit.h"
#include "colossal/models/ffn_ratio.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {

namespace mmdit_open_sora {  // a namespace of its own, because every family has functions of these names

constexpr const char* kType = "MMDiT";
constexpr double kEpsilon = 1e-6;  // norms of blocks

using Rows = std::vector<nn::ExternalRows>;

/// Returns the rows of heads whose features turn there in pairs of the two halves of a head, and here in pairs of the
/// two halves of an axis.
Rows turned(const char* tensor, int64_t heads, int64_t head_dim, const std::vector<int64_t>& axes) {
  Rows rows;
  for (int64_t head = 0; head < heads; ++head) {
    int64_t first = head * head_dim;
    for (const int64_t features : axes) {
      for (const int64_t half : {0, 1}) rows.emplace_back(tensor, first + half * (head_dim / 2), features / 2);
      first += features / 2;
    }
  }
  return rows;
}

/// Adds the names of the heads of attention `ours`, with the tensors of `theirs`. Values are the first rows of `v`.
void add_heads(std::vector<nn::ExternalName>& table, const ModelShape& s, const std::string& ours,
               const std::string& theirs, const char* v) {
  const auto axes = s.own.as<MmditSizes>().axes;
  const auto name = [&](const char* end) { return theirs + end; };
  Rows qkv = turned(name("q_proj").c_str(), s.heads, s.head_dim, axes);
  for (const nn::ExternalRows& row : turned(name("k_proj").c_str(), s.heads, s.head_dim, axes)) qkv.push_back(row);
  qkv.emplace_back(name(v), 0, s.hidden);
  table.push_back({ours + ".qkv", qkv});
  table.push_back({ours + ".q_norm.weight", turned(name("norm.query_norm.scale").c_str(), 1, s.head_dim, axes)});
  table.push_back({ours + ".k_norm.weight", turned(name("norm.key_norm.scale").c_str(), 1, s.head_dim, axes)});
}

FolderNames table(const ModelShape& s) {
  const auto own = s.own.as<MmditSizes>();
  // The channels of a cell are next to each other in our predictions, and the cells of a channel in theirs.
  Rows head;
  for (int64_t cell = 0; cell < own.patch * own.patch; ++cell)
    head.emplace_back("final_layer.linear", cell, own.channels, own.patch * own.patch);
  FolderNames names{.outside = {{"patches", {"img_in"}},
                                {"given", {"cond_in"}},
                                {"text", {"txt_in"}},
                                {"time.linear_1", {"time_in.in_layer"}},
                                {"time.linear_2", {"time_in.out_layer"}},
                                {"pooled.linear_1", {"vector_in.in_layer"}},
                                {"pooled.linear_2", {"vector_in.out_layer"}},
                                {"guidance.linear_1", {"guidance_in.in_layer"}},
                                {"guidance.linear_2", {"guidance_in.out_layer"}},
                                {"norm.modulation", {"final_layer.adaLN_modulation.1"}},
                                {"head", head}},
                    .in_block = {{"patches.modulation", {"img_mod.lin"}},
                                 {"patches.attention.out", {"img_attn.proj"}},
                                 {"patches.mlp.up", {"img_mlp.0"}},
                                 {"patches.mlp.down", {"img_mlp.2"}},
                                 {"text.modulation", {"txt_mod.lin"}},
                                 {"text.attention.out", {"txt_attn.proj"}},
                                 {"text.mlp.up", {"txt_mlp.0"}},
                                 {"text.mlp.down", {"txt_mlp.2"}},
                                 {"modulation", {"modulation.lin"}},
                                 {"mlp.up", {{"v_mlp", s.hidden, s.ffn}}},
                                 {"out", {"linear2"}}}};
  add_heads(names.in_block, s, "patches.attention", "img_attn.", "v_proj");
  add_heads(names.in_block, s, "text.attention", "txt_attn.", "v_proj");
  add_heads(names.in_block, s, "attention", "", "v_mlp");
  const int64_t doubles = s.layers - own.single;
  for (int64_t i = 0; i < s.layers; ++i)
    names.each_block.push_back(i < doubles ? concat("double_blocks.", i, ".")
                                           : concat("single_blocks.", i - doubles, "."));
  return names;
}

std::vector<nn::ExternalName> names(const ModelShape& s) { return names_in_folder(s, table(s)); }

/// The keys whose one value makes the layout and the positions of the published file.
void fixed_keys(FolderKeys& k) {
  k.fixed("theta", 10000);
  k.fixed("qkv_bias", true);
  k.fixed("cond_embed", true);
  k.fixed("fused_qkv", false);
  k.fixed("use_liger_rope", true);
}

void keys(FolderKeys& k, ModelShape& s, MmditSizes& own) {
  if (k.reads()) own = open_sora_sizes();
  int64_t in = own.channels * own.patch * own.patch, doubles = s.layers - own.single;
  double ratio = k.writes() ? ratio_of_ffn(s.ffn, s.hidden) : 0;
  k.required("in_channels", in);
  k.optional("patch_size", own.patch, 2);
  k.required("vec_in_dim", own.pooled);
  k.required("context_in_dim", own.text);
  k.required("hidden_size", s.hidden);
  k.required("mlp_ratio", ratio);
  k.required("num_heads", s.heads);
  k.required("depth", doubles);
  k.required("depth_single_blocks", own.single);
  k.required("axes_dim", own.axes);
  k.required("guidance_embed", own.told_guidance);
  k.omitted("norm_epsilon", s.norm_epsilon, kEpsilon);  // no key of Open-Sora
  fixed_keys(k);
  check_sizes_read(k, {{"in_channels", in},
                       {"patch_size", own.patch},
                       {"vec_in_dim", own.pooled},
                       {"context_in_dim", own.text},
                       {"hidden_size", s.hidden},
                       {"num_heads", s.heads},
                       {"depth", doubles},
                       {"depth_single_blocks", own.single}});
  if (!k.reads()) return;
  const int64_t cells = own.patch * own.patch;
  require(in % cells == 0, "model", "in_channels must be divisible by the ", cells, " cells of a patch: got ", in);
  own.channels = in / cells;
  s.layers = doubles + own.single;
  s.kv_heads = s.heads;
  s.head_dim = s.hidden / s.heads;
  s.ffn = ffn_of_ratio(ratio, s.hidden);
  s.tied = false;
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, kType), keys); }

nlohmann::json to_json(const ModelShape& s) {
  const auto own = s.own.as<MmditSizes>();
  const auto check = [](bool is_right, const char* key, const auto& rule, const auto& got) {
    require(is_right, "model", "Open-Sora computes this model only with ", key, " = ", rule, ": got ", got,
            "; train the model with that value");
  };
  check(own.frames > 0, "frames", "1 or more", own.frames);
  check(own.single > 0, "single", "1 or more", own.single);
  check(own.head_norms, "head_norms", "true", "false");
  return write_folder(kType, kType, s, keys);
}

}  // namespace mmdit_open_sora

HuggingFace open_sora_folder() {
  return {.model_type = mmdit_open_sora::kType,
          .names = mmdit_open_sora::names,
          .from_json = mmdit_open_sora::from_json,
          .to_json = mmdit_open_sora::to_json,
          .own_training = {"frames", "height", "width", "text_tokens"}};
}

}  // namespace colossal::models
