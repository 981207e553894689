#include "colossal/models/llama.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/models/transformer_block.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {

void LlamaSizes::fields(Fields& f) {
  f.number("rope_theta", rope_theta, "", "base of the rotary frequencies", 1, 1e12);
  f.number("rope_factor", rope_factor, "",
           "LLaMA 3: how far low frequencies are stretched for sequences longer than rope_original_positions; 1: not",
           1, 1e6);
  f.number("rope_low_frequency_factor", rope_low_frequency_factor, "",
           "waves longer than rope_original_positions / this are stretched whole", 1e-3, 1e6);
  f.number("rope_high_frequency_factor", rope_high_frequency_factor, "",
           "waves shorter than rope_original_positions / this are left as they are", 1e-3, 1e6);
  f.integer("rope_original_positions", rope_original_positions, "tokens", "longest sequence before the stretch", 1,
            kLargestSize);
  f.integer("window", window, "tokens", "that a token sees, itself the last of them (Mistral); 0: all before it", 0,
            kLargestSize);
}

namespace llama {  // the same names in every family

at::Tensor gated_silu(const at::Tensor& gate_and_up) { return ops::swiglu(gate_and_up); }

Model make(const ModelShape& s, nn::Layers& layers) {
  Model model;
  std::shared_ptr<nn::Embedding> tokens = layers.embedding("embedding", s.vocabulary, s.hidden, kDeviation);
  std::shared_ptr<nn::Dropout> dropout = layers.dropout("embedding.dropout", s.hidden, s.dropout);
  model.embed = [=](const at::Tensor& ids, const nn::Step& step) {
    return dropout->forward(tokens->forward(ids, step), step);
  };
  const auto r = s.own.as<LlamaSizes>();
  ops::RotaryScaling scaling;
  if (r.rope_factor != 1)
    scaling = {.kind = ops::RotaryScaling::Kind::Llama3,
               .factor = r.rope_factor,
               .original_positions = r.rope_original_positions,
               .low_freq_factor = r.rope_low_frequency_factor,
               .high_freq_factor = r.rope_high_frequency_factor};
  add_transformer_blocks(model, s,
                         {.norm = BlockVariant::Norm::Rms,
                          .activation = gated_silu,
                          .gated = true,
                          .bias = false,
                          .attention = {.window = r.window},
                          .rotary = std::make_shared<const ops::RotaryTable>(s.head_dim, r.rope_theta, scaling)},
                         layers);
  std::shared_ptr<nn::Norm> norm = layers.rms_norm("norm", s.hidden, {s.norm_epsilon});
  model.norm = [norm](const at::Tensor& x, const nn::Step&) { return norm->forward(x); };
  model.head = layers.lm_head("head", s.hidden, s.vocabulary,
                              {.deviation = kDeviation, .tied = s.tied ? tokens.get() : nullptr});
  return model;
}

void settle(ModelShape& s) {
  require(s.head_dim % 2 == 0, "model", "rotary positions need an even head_dim: got ", s.head_dim);
}

struct Sizes {
  int64_t vocabulary, hidden, layers, heads, kv_heads, ffn, positions;
  double theta = 10000;
  bool tied = false;
};

ModelShape sized(const Sizes& s) {
  return {.vocabulary = s.vocabulary,
          .hidden = s.hidden,
          .layers = s.layers,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.hidden / s.heads,
          .ffn = s.ffn,
          .positions = s.positions,
          .tied = s.tied,
          .own = LlamaSizes{.rope_theta = s.theta}};
}

std::vector<Preset> presets() {
  ModelShape llama31_8b = sized({128256, 4096, 32, 32, 8, 14336, 131072, 500000});
  llama31_8b.own = LlamaSizes{500000, 8, 1, 4, 8192};
  ModelShape llama32_1b = sized({128256, 2048, 16, 32, 8, 8192, 131072, 500000, true});
  llama32_1b.own = LlamaSizes{500000, 32, 1, 4, 8192};
  return {{"llama-tiny", sized({257, 128, 4, 8, 4, 352, 512, 10000, true})},
          {"llama-15m", sized({32000, 288, 6, 6, 6, 768, 256, 10000, true})},
          {"llama-110m", sized({32000, 768, 12, 12, 12, 2048, 1024, 10000, true})},
          {"llama2-7b", sized({32000, 4096, 32, 32, 32, 11008, 4096})},
          {"llama2-13b", sized({32000, 5120, 40, 40, 40, 13824, 4096})},
          {"llama2-70b", sized({32000, 8192, 80, 64, 8, 28672, 4096})},
          {"llama3-8b", sized({128256, 4096, 32, 32, 8, 14336, 8192, 500000})},
          {"llama3-70b", sized({128256, 8192, 80, 64, 8, 28672, 8192, 500000})},
          {"llama3.1-8b", llama31_8b},
          {"llama3.2-1b", llama32_1b}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  std::vector<nn::ExternalName> names{{"embedding.weight", {"model.embed_tokens.weight"}},
                                      {"norm.weight", {"model.norm.weight"}}};
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string ours = concat("blocks.", i), theirs = concat("model.layers.", i);
    const std::string attention = theirs + ".self_attn.", mlp = theirs + ".mlp.";
    names.push_back({ours + ".norm_1.weight", {theirs + ".input_layernorm.weight"}});
    names.push_back({ours + ".attention.qkv.weight",
                     {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"}});
    names.push_back({ours + ".attention.out.weight", {attention + "o_proj.weight"}});
    names.push_back({ours + ".norm_2.weight", {theirs + ".post_attention_layernorm.weight"}});
    names.push_back({ours + ".mlp.gate_up.weight", {mlp + "gate_proj.weight", mlp + "up_proj.weight"}});
    names.push_back({ours + ".mlp.down.weight", {mlp + "down_proj.weight"}});
  }
  if (!s.tied) names.push_back({"head.weight", {"lm_head.weight"}});
  return names;
}

LlamaSizes own_from_json(const nlohmann::json& j) {
  LlamaSizes r;
  const bool has_window =
      j.at("model_type") == "mistral" && !(j.contains("sliding_window") && j["sliding_window"].is_null());
  if (has_window) r.window = j.value("sliding_window", int64_t{4096});
  r.rope_theta = j.value("rope_theta", 10000.0);
  // transformers 5 writes rope_parameters with the base inside, 4 writes rope_theta beside rope_scaling.
  const nlohmann::json scaling =
      j.contains("rope_parameters") ? j["rope_parameters"] : j.value("rope_scaling", nlohmann::json());
  if (!scaling.is_object()) return r;
  r.rope_theta = scaling.value("rope_theta", r.rope_theta);
  const std::string type = scaling.value("rope_type", scaling.value("type", "default"));
  if (type == "default") return r;
  require(type == "llama3", "model", "rope_scaling of type llama3 or default is supported: got ", type);
  r.rope_factor = scaling.at("factor");
  r.rope_low_frequency_factor = scaling.at("low_freq_factor");
  r.rope_high_frequency_factor = scaling.at("high_freq_factor");
  r.rope_original_positions = scaling.at("original_max_position_embeddings");
  return r;
}

ModelShape from_json(const nlohmann::json& j) {
  const int64_t heads = std::max<int64_t>(1, j.at("num_attention_heads"));
  ModelShape s =
      sized({j.at("vocab_size"), j.at("hidden_size"), j.at("num_hidden_layers"), heads,
             j.value("num_key_value_heads", heads), j.at("intermediate_size"), j.at("max_position_embeddings")});
  if (j.contains("head_dim") && !j["head_dim"].is_null()) s.head_dim = j["head_dim"];
  s.tied = j.value("tie_word_embeddings", false);
  s.norm_epsilon = j.value("rms_norm_eps", 1e-6);
  s.own = own_from_json(j);
  require(j.value("hidden_act", "silu") == "silu", "model", "hidden_act of a LLaMA must be silu");
  require(!j.value("attention_bias", false) && !j.value("mlp_bias", false), "model",
          "a LLaMA with biases is not supported");
  return s;
}

nlohmann::json to_json(const ModelShape& s) {
  const auto r = s.own.as<LlamaSizes>();
  nlohmann::json j{{"architectures", {"LlamaForCausalLM"}},
                   {"model_type", "llama"},
                   {"vocab_size", s.vocabulary},
                   {"hidden_size", s.hidden},
                   {"num_hidden_layers", s.layers},
                   {"num_attention_heads", s.heads},
                   {"num_key_value_heads", s.kv_heads},
                   {"head_dim", s.head_dim},
                   {"intermediate_size", s.ffn},
                   {"max_position_embeddings", s.positions},
                   {"rms_norm_eps", s.norm_epsilon},
                   {"rope_theta", r.rope_theta},
                   {"tie_word_embeddings", s.tied},
                   {"hidden_act", "silu"},
                   {"attention_bias", false},
                   {"mlp_bias", false},
                   {"rope_scaling", nullptr}};
  if (r.window > 0) {
    j["architectures"] = {"MistralForCausalLM"};
    j["model_type"] = "mistral";
    j["sliding_window"] = r.window;
  }
  if (r.rope_factor != 1) {
    j["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", r.rope_factor},
                         {"low_freq_factor", r.rope_low_frequency_factor},
                         {"high_freq_factor", r.rope_high_frequency_factor},
                         {"original_max_position_embeddings", r.rope_original_positions}};
  }
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
                           .also = {"mistral"},
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .prefix = "model.",
                           .ignored = {"*.rotary_emb.inv_freq"}}};
}

}  // namespace colossal::models
