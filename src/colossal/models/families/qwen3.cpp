#include "colossal/models/families/qwen3.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/expert_folder.h"
#include "colossal/models/folder_config.h"

namespace colossal::models {

void Qwen3Sizes::fields(Fields& f) {
  layout.fields(f);
  f.flag("attention_bias", attention_bias, "biases in the projections of attention");
  windows.fields(f);
  expert_table(f, experts);
}

namespace qwen3 {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<Qwen3Sizes>();
  BlockVariant block = llama_block(s, own.layout);
  block.bias.qkv = block.bias.out = own.attention_bias;
  block.head_norms = true;
  const BlockVariants windowed = with_windows(block, own.windows, every_layer);
  return make_decoder(s, {.block = block, .blocks = with_experts(windowed, own.experts, s)}, layers);
}

void settle(ModelShape& s) {
  const auto own = s.own.as<Qwen3Sizes>();
  settle_rotary(own.layout.rotary, s.head_dim, s);
  settle_windows(own.windows, every_layer, s);
  settle_experts(own.experts, s);
}

std::vector<Preset> presets() {
  const auto sized = [](LlamaLayoutSizes sizes, const ExpertKeys& experts = {}) {
    sizes.norm_epsilon = 1e-6;
    return llama_layout(sizes, Qwen3Sizes{.layout = {.rotary = {.theta = 1e6}}, .experts = experts});
  };
  return {{"qwen3-tiny", sized({257, 128, 4, 8, 2, 352, 512, true, 32})},
          {"qwen3-0.6b", sized({151936, 1024, 28, 16, 8, 3072, 40960, true, 128})},
          {"qwen3-1.7b", sized({151936, 2048, 28, 16, 8, 6144, 40960, true, 128})},
          {"qwen3-4b", sized({151936, 2560, 36, 32, 8, 9728, 40960, true, 128})},
          {"qwen3-8b", sized({151936, 4096, 36, 32, 8, 12288, 40960, false, 128})},
          {"qwen3-14b", sized({151936, 5120, 40, 40, 8, 17408, 40960, false, 128})},
          {"qwen3-32b", sized({151936, 5120, 64, 64, 8, 25600, 40960, false, 128})},
          {"qwen3-moe-tiny", sized({257, 128, 4, 8, 2, 352, 512, true, 32}, {.count = 16, .used = 4, .ffn = 88})},
          {"qwen3-30b-a3b",
           sized({151936, 2048, 48, 32, 4, 6144, 40960, false, 128}, {.count = 128, .used = 8, .ffn = 768})}};
}

/// Checks that a Qwen3-MoE can have the keys of a model with experts. All its layers have the window, or none.
void require_qwen_moe(const Qwen3Sizes& own) {
  require_qwen_moe_form(own.experts);
  const std::vector<std::string>& types = own.windows.layer_types;
  require(std::all_of(types.begin(), types.end(), [&](const std::string& type) { return type == types.front(); }),
          "model", "layer_types must all be equal to write a model with experts as a qwen3_moe: got a window in some ",
          "layers alone; use the run folder or its checkpoints instead");
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const auto own = s.own.as<Qwen3Sizes>();
  if (own.experts.count > 0) require_qwen_moe(own);
  return names_in_folder(s, llama_layout_names(qwen_moe_names()));
}

void keys(FolderKeys& k, ModelShape& s, Qwen3Sizes& own) {
  llama_layout_keys(k, s, own.layout, {.kv_heads = 32, .head_dim = 128});
  k.optional("attention_bias", own.attention_bias, false);
  qwen_window_keys(k, own.windows, s.layers);
}

void moe_keys(FolderKeys& k, ModelShape& s, Qwen3Sizes& own) {
  llama_layout_keys(k, s, own.layout, {.kv_heads = 4, .null_means_all_heads = false});
  k.optional("attention_bias", own.attention_bias, false);
  qwen_window_size_keys(k, own.windows);  // the class does not read max_window_layers and layer_types
  qwen_moe_expert_keys(k, s, own.experts);
}

ModelShape from_json(const nlohmann::json& j) {
  if (j.at("model_type") == "qwen3_moe") return read_folder(FolderConfig(j, "Qwen3-MoE"), moe_keys);
  return read_folder(FolderConfig(j, "Qwen3"), keys);
}

nlohmann::json to_json(const ModelShape& s) {
  const auto own = s.own.as<Qwen3Sizes>();
  if (own.experts.count == 0) return write_folder("qwen3", "Qwen3ForCausalLM", s, keys);
  require_qwen_moe(own);
  return write_folder("qwen3_moe", "Qwen3MoeForCausalLM", s, moe_keys);
}

}  // namespace qwen3

Architecture qwen3_architecture() {
  using namespace qwen3;
  return {.name = "qwen3",
          .own = Qwen3Sizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "qwen3",
                           .also = {"qwen3_moe"},
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = refuse_attention_dropout,
                           .prefix = "model.",
                           .head = "lm_head.weight",
                           .ignored = {rotary_table()},
                           .own_training = expert_training_keys()}};
}

}  // namespace colossal::models
