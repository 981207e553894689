#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/llama_layout.h"
#include "colossal/models/window_keys.h"

namespace colossal::models {

struct Qwen2Sizes {
  LlamaLayoutKeys layout{};
  WindowKeys windows{};
  void fields(Fields& f);
  bool operator==(const Qwen2Sizes&) const = default;
};

void Qwen2Sizes::fields(Fields& f) {
  layout.fields(f);
  windows.fields(f);
}

namespace qwen2 {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<Qwen2Sizes>();
  BlockVariant block = llama_block(s, own.layout);
  block.bias.qkv = true;
  return make_decoder(s, {.block = block, .blocks = with_windows(block, own.windows, every_layer)}, layers);
}

void settle(ModelShape& s) {
  const auto own = s.own.as<Qwen2Sizes>();
  settle_rotary(own.layout.rotary, s.head_dim, s);
  settle_windows(own.windows, every_layer, s);
}

std::vector<Preset> presets() {
  const auto sized = [](LlamaLayoutSizes sizes) {
    sizes.norm_epsilon = 1e-6;
    return llama_layout(sizes, Qwen2Sizes{.layout = {.rotary = {.theta = 1e6}}});
  };
  return {{"qwen2.5-tiny", sized({257, 128, 4, 8, 2, 352, 512, true})},
          {"qwen2.5-0.5b", sized({151936, 896, 24, 14, 2, 4864, 32768, true})},
          {"qwen2.5-1.5b", sized({151936, 1536, 28, 12, 2, 8960, 131072, true})},
          {"qwen2.5-3b", sized({151936, 2048, 36, 16, 2, 11008, 32768, true})},
          {"qwen2.5-7b", sized({152064, 3584, 28, 28, 4, 18944, 131072})}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) { return names_in_folder(s, llama_layout_names()); }

void keys(FolderKeys& k, ModelShape& s, Qwen2Sizes& own) {
  llama_layout_keys(k, s, own.layout, {.kv_heads = 32});
  qwen_window_keys(k, own.windows, s.layers);
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "Qwen2"), keys); }

nlohmann::json to_json(const ModelShape& s) { return write_folder("qwen2", "Qwen2ForCausalLM", s, keys); }

}  // namespace qwen2

Architecture qwen2_architecture() {
  using namespace qwen2;
  return {.name = "qwen2",
          .own = Qwen2Sizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "qwen2",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = refuse_attention_dropout,
                           .prefix = "model.",
                           .head = "lm_head.weight",
                           .ignored = {rotary_table()}}};
}

}  // namespace colossal::models
