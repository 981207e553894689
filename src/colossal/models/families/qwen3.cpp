#include "colossal/models/families/qwen3.h"

#include <nlohmann/json.hpp>

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

std::vector<nn::ExternalName> external_names(const ModelShape& s) { return names_in_folder(s, llama_layout_names()); }

ModelShape from_json(const nlohmann::json& j) {
  const FolderConfig c(j, "Qwen3");
  ModelShape s = read_llama_layout(c, {.kv_heads = 32});
  if (!c.has("head_dim")) s.head_dim = 128;
  s.own = Qwen3Sizes{.layout = read_llama_keys(c),
                     .attention_bias = c.value("attention_bias", false),
                     .windows = read_qwen_windows(c, s.layers)};
  return s;
}

nlohmann::json to_json(const ModelShape& s) {
  const auto own = s.own.as<Qwen3Sizes>();
  nlohmann::json j = write_llama_layout(s, own.layout, "qwen3", "Qwen3ForCausalLM");
  j["attention_bias"] = own.attention_bias;
  write_qwen_windows(own.windows, s.layers, j);
  return j;
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
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .prefix = "model.",
                           .head = "lm_head.weight",
                           .ignored = {rotary_table()},
                           .own_training = expert_training_keys()}};
}

}  // namespace colossal::models
