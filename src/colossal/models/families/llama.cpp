#include "colossal/models/families/llama.h"

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/expert_folder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/shape_parts.h"

namespace colossal::models {

void LlamaSizes::fields(Fields& f) {
  layout.fields(f);
  f.flag("attention_bias", attention_bias, "biases in the projections of attention");
  f.flag("mlp_bias", mlp_bias, "biases in the feed-forward layer");
  f.integer("window", window, "tokens", "attention window, including the token itself (Mistral); 0 = no limit", 0,
            kMaxSize);
  expert_table(f, experts);
}

namespace llama {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<LlamaSizes>();
  BlockVariant block = llama_block(s, own.layout);
  block.bias = {.qkv = own.attention_bias, .out = own.attention_bias, .mlp = own.mlp_bias};
  block.attention.window = own.window;
  return make_decoder(s, {.block = block, .blocks = with_experts(block, own.experts, s)}, layers);
}

void settle(ModelShape& s) {
  const auto own = s.own.as<LlamaSizes>();
  settle_rotary(own.layout.rotary, s.head_dim, s);
  s.set(SlidingWindow{own.window});
  require(own.window == 0 || (!own.attention_bias && !own.mlp_bias), "model",
          "attention_bias and mlp_bias must be false with a window, because no folder format has both: got window ",
          own.window, "; set it to 0, or the biases to false");
  settle_experts(own.experts, s);
}

std::vector<Preset> presets() {
  const auto based = [](double theta) { return LlamaSizes{.layout = {.rotary = {.theta = theta}}}; };
  const auto stretched = [&](double factor) {
    LlamaSizes own = based(500000);
    own.layout.rotary.type = "llama3";
    own.layout.rotary.scaling = {.factor = factor, .original_positions = 8192};
    return own;
  };
  const auto mixture = [&](int64_t count, int64_t used) {
    LlamaSizes own = based(1e6);
    own.experts.count = count, own.experts.used = used;
    return own;
  };
  const LlamaSizes plain;
  return {{"llama-tiny", llama_layout({257, 128, 4, 8, 4, 352, 512, true}, plain)},
          {"llama-15m", llama_layout({32000, 288, 6, 6, 6, 768, 256, true}, plain)},
          {"llama-110m", llama_layout({32000, 768, 12, 12, 12, 2048, 1024, true}, plain)},
          {"llama2-7b", llama_layout({32000, 4096, 32, 32, 32, 11008, 4096}, plain)},
          {"llama2-13b", llama_layout({32000, 5120, 40, 40, 40, 13824, 4096}, plain)},
          {"llama2-70b", llama_layout({32000, 8192, 80, 64, 8, 28672, 4096}, plain)},
          {"llama3-8b", llama_layout({128256, 4096, 32, 32, 8, 14336, 8192}, based(500000))},
          {"llama3-70b", llama_layout({128256, 8192, 80, 64, 8, 28672, 8192}, based(500000))},
          {"llama3.1-8b", llama_layout({128256, 4096, 32, 32, 8, 14336, 131072}, stretched(8))},
          {"llama3.1-405b", llama_layout({128256, 16384, 126, 128, 8, 53248, 131072}, stretched(8))},
          {"llama3.2-1b", llama_layout({128256, 2048, 16, 32, 8, 8192, 131072, true}, stretched(32))},
          {"mistral-7b", llama_layout({32000, 4096, 32, 32, 8, 14336, 32768}, LlamaSizes{.window = 4096})},
          {"mixtral-tiny", llama_layout({257, 128, 4, 8, 4, 176, 512, true}, mixture(8, 2))},
          {"mixtral-8x7b", llama_layout({32000, 4096, 32, 32, 8, 14336, 32768}, mixture(8, 2))}};
}

/// Checks that a Mixtral can have the keys of a model with experts.
void require_mixtral(const LlamaSizes& own) {
  require_mixtral_form(own.experts);
  for (const auto& [key, bias] : {std::pair{"attention_bias", own.attention_bias}, {"mlp_bias", own.mlp_bias}})
    require(!bias, "model", key, " must be false to write a model with experts as a mixtral, which has no biases: got ",
            "true; use the run folder or its checkpoints instead");
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const auto own = s.own.as<LlamaSizes>();
  if (own.experts.count == 0) return names_in_folder(s, llama_layout_names());
  require_mixtral(own);
  return names_in_folder(s, llama_layout_names(mixtral_names()));
}

/// A family of folders: its name in messages, its model_type, its class in transformers, and its rows.
struct Folder {
  const char *name, *model_type, *architecture;
  void (*keys)(FolderKeys&, ModelShape&, LlamaSizes&);
};

void llama_keys(FolderKeys& k, ModelShape& s, LlamaSizes& own) {
  llama_layout_keys(k, s, own.layout);
  k.optional("attention_bias", own.attention_bias, false);
  k.optional("mlp_bias", own.mlp_bias, false);
}

void mistral_keys(FolderKeys& k, ModelShape& s, LlamaSizes& own) {
  llama_layout_keys(k, s, own.layout, {.kv_heads = 8, .null_means_all_heads = false});
  k.or_null("sliding_window", own.window, 4096);
}

void mixtral_keys(FolderKeys& k, ModelShape& s, LlamaSizes& own) {
  const RotaryReading rotary{.whole = true, .theta = 1e6};
  llama_layout_keys(k, s, own.layout, {.kv_heads = 8, .norm_epsilon = 1e-5, .rotary = rotary});
  k.or_null("sliding_window", own.window, 0);
  mixtral_expert_keys(k, s, own.experts);
}

constexpr Folder kLlama{"LLaMA", "llama", "LlamaForCausalLM", llama_keys},
    kMistral{"Mistral", "mistral", "MistralForCausalLM", mistral_keys},
    kMixtral{"Mixtral", "mixtral", "MixtralForCausalLM", mixtral_keys};

ModelShape from_json(const nlohmann::json& j) {
  for (const Folder& folder : {kMistral, kMixtral})
    if (j.at("model_type") == folder.model_type) return read_folder(FolderConfig(j, folder.name), folder.keys);
  return read_folder(FolderConfig(j, kLlama.name), kLlama.keys);
}

void check_training(const FolderConfig& c, const ModelShape& s) {
  refuse_attention_dropout(c, s);
  if (s.own.as<LlamaSizes>().experts.count > 0) c.must_be_to_train("router_jitter_noise", 0);
}

nlohmann::json to_json(const ModelShape& s) {
  const auto own = s.own.as<LlamaSizes>();
  if (own.experts.count > 0) require_mixtral(own);
  const Folder& folder = own.experts.count > 0 ? kMixtral : own.window > 0 ? kMistral : kLlama;
  return write_folder(folder.model_type, folder.architecture, s, folder.keys);
}

}  // namespace llama

Architecture llama_architecture() {
  using namespace llama;
  return {.name = "llama",
          .own = LlamaSizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "llama",
                           .also = {"mistral", "mixtral"},
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = check_training,
                           .prefix = "model.",
                           .head = "lm_head.weight",
                           .ignored = {rotary_table()},
                           .old_endings = {{"block_sparse_moe.gate.weight", "mlp.gate.weight"}},
                           .own_training = expert_training_keys()}};
}

}  // namespace colossal::models
