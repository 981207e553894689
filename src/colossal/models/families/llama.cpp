#include "colossal/models/families/llama.h"

#include "colossal/base/error.h"
#include "colossal/base/json.h"
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

ModelShape mixtral_from_json(const nlohmann::json& j) {
  const FolderConfig c(j, "Mixtral");
  ModelShape s = read_llama_layout(c, {.kv_heads = 8, .norm_epsilon = 1e-5});
  s.own = LlamaSizes{.layout = read_llama_keys(c, {.whole = true, .theta = 1e6}),
                     .window = c.value("sliding_window", int64_t{0}),
                     .experts = read_mixtral_experts(c)};
  return s;
}

ModelShape from_json(const nlohmann::json& j) {
  if (j.at("model_type") == "mixtral") return mixtral_from_json(j);
  const bool is_mistral = j.at("model_type") == "mistral";
  const FolderConfig c(j, is_mistral ? "Mistral" : "LLaMA");
  ModelShape s = read_llama_layout(
      c, is_mistral ? LlamaLayoutDefaults{.kv_heads = 8, .null_means_all_heads = false} : LlamaLayoutDefaults{});
  LlamaSizes own{.layout = read_llama_keys(c)};
  if (is_mistral) {
    own.window = c.says_null("sliding_window") ? 0 : c.value("sliding_window", int64_t{4096});
  } else {
    own.attention_bias = c.value("attention_bias", false);
    own.mlp_bias = c.value("mlp_bias", false);
  }
  s.own = own;
  return s;
}

void check_training(const FolderConfig& c, const ModelShape& s) {
  refuse_attention_dropout(c, s);
  if (s.own.as<LlamaSizes>().experts.count > 0) c.must_be_to_train("router_jitter_noise", 0);
}

nlohmann::json mixtral_to_json(const ModelShape& s, const LlamaSizes& own) {
  require_mixtral(own);
  nlohmann::json j = write_llama_layout(s, own.layout, "mixtral", "MixtralForCausalLM");
  j["sliding_window"] = own.window > 0 ? nlohmann::json(own.window) : nlohmann::json();
  write_mixtral_experts(s, own.experts, j);
  return j;
}

nlohmann::json to_json(const ModelShape& s) {
  const auto own = s.own.as<LlamaSizes>();
  if (own.experts.count > 0) return mixtral_to_json(s, own);
  const bool is_mistral = own.window > 0;
  nlohmann::json j = write_llama_layout(s, own.layout, is_mistral ? "mistral" : "llama",
                                        is_mistral ? "MistralForCausalLM" : "LlamaForCausalLM");
  if (is_mistral)
    j["sliding_window"] = own.window;
  else
    j.update({{"attention_bias", own.attention_bias}, {"mlp_bias", own.mlp_bias}});
  return j;
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
