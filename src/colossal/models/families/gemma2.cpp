#include <cmath>

#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/llama_layout.h"
#include "colossal/models/window_keys.h"

namespace colossal::models {

struct Gemma2Sizes {
  LlamaLayoutKeys layout{.activation = "gelu_pytorch_tanh"};
  bool attention_bias = false;
  int64_t query_scale = 256;  ///< scores are divided by its square root
  double score_cap = 50, logit_cap = 30;
  WindowKeys windows{.window = 4096};
  void fields(Fields& f);
  bool operator==(const Gemma2Sizes&) const = default;
};

void Gemma2Sizes::fields(Fields& f) {
  layout.fields(f);
  f.flag("attention_bias", attention_bias, "biases in the projections of attention");
  f.integer("query_scale", query_scale, "", "square of the divisor of attention scores", 1, kMaxSize);
  f.number("score_cap", score_cap, "", "soft cap of attention scores, which stay within +- this; 0 = no cap", 0, 1e6);
  f.number("logit_cap", logit_cap, "", "soft cap of logits, which stay within +- this; 0 = no cap", 0, 1e6);
  windows.fields(f);
}

namespace gemma2 {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<Gemma2Sizes>();
  BlockVariant block = llama_block(s, own.layout);
  block.norm.unit_offset = true;
  block.placement = BlockVariant::Placement::Around;
  block.bias.qkv = block.bias.out = own.attention_bias;
  block.attention.soft_cap = own.score_cap;
  block.attention.scale = 1 / std::sqrt(static_cast<double>(own.query_scale));
  return make_decoder(s,
                      {.block = block,
                       .blocks = with_windows(block, own.windows, every_second_layer),
                       .embedding_scale = std::sqrt(static_cast<double>(s.hidden)),
                       .soft_cap = own.logit_cap},
                      layers);
}

void settle(ModelShape& s) {
  const auto own = s.own.as<Gemma2Sizes>();
  settle_rotary(own.layout.rotary, s.head_dim, s);
  settle_windows(own.windows, every_second_layer, s);
}

std::vector<Preset> presets() {
  // Table 1 of the paper.
  const auto sized = [](LlamaLayoutSizes sizes, const Gemma2Sizes& own) {
    sizes.norm_epsilon = 1e-6;
    return llama_layout(sizes, own);
  };
  return {
      {"gemma2-tiny", sized({257, 128, 4, 4, 2, 512, 512, true, 64}, {.query_scale = 64, .windows = {.window = 32}})},
      {"gemma2-2b", sized({256000, 2304, 26, 8, 4, 9216, 8192, true, 256}, {})},
      {"gemma2-9b", sized({256000, 3584, 42, 16, 8, 14336, 8192, true, 256}, {})},
      {"gemma2-27b", sized({256000, 4608, 46, 32, 16, 36864, 8192, true, 128}, {.query_scale = 144})}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  return names_in_folder(s, llama_layout_names({{"attention.post_norm", {"post_attention_layernorm"}},
                                                {"norm_2", {"pre_feedforward_layernorm"}},
                                                {"mlp.post_norm", {"post_feedforward_layernorm"}}}));
}

void keys(FolderKeys& k, ModelShape& s, Gemma2Sizes& own) {
  llama_layout_keys(k, s, own.layout,
                    {.tied = true,
                     .kv_heads = 4,
                     .null_means_all_heads = false,
                     .head_dim = 256,
                     .activation = {"hidden_activation", "gelu_pytorch_tanh"}});
  k.optional("attention_bias", own.attention_bias, false);
  k.optional("query_pre_attn_scalar", own.query_scale, 256);
  k.or_null("attn_logit_softcapping", own.score_cap, 50);
  k.or_null("final_logit_softcapping", own.logit_cap, 30);
  int64_t window = own.windows.window > 0 ? own.windows.window : s.positions;
  k.or_null("sliding_window", window, 4096);
  layer_types_key(k, own.windows, window, s.layers, every_second_layer);
  k.only("use_bidirectional_attention", false);
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "Gemma 2"), keys); }

nlohmann::json to_json(const ModelShape& s) { return write_folder("gemma2", "Gemma2ForCausalLM", s, keys); }

}  // namespace gemma2

Architecture gemma2_architecture() {
  using namespace gemma2;
  return {.name = "gemma2",
          .own = Gemma2Sizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "gemma2",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = refuse_attention_dropout,
                           .prefix = "model.",
                           .head = "lm_head.weight",
                           .ignored = {rotary_table()}}};
}

}  // namespace colossal::models
