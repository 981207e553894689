#include "colossal/models/llama_layout.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/folder_config.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

ModelShape llama_layout(const LlamaLayoutSizes& s, const OwnSizes& own) {
  return {.vocabulary = s.vocabulary,
          .hidden = s.hidden,
          .layers = s.layers,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim == 0 ? s.hidden / s.heads : s.head_dim,
          .ffn = s.ffn,
          .positions = s.positions,
          .norm_epsilon = s.norm_epsilon,
          .tied = s.tied,
          .own = own};
}

void LlamaLayoutKeys::fields(Fields& f) {
  rotary.fields(f);
  activation_field(f, activation);
}

BlockVariant llama_block(const ModelShape& s, const LlamaLayoutKeys& keys, int64_t rotated) {
  return {.norm = {NormVariant::Kind::Rms},
          .activation = ops::activation(keys.activation).gated,
          .gated = true,
          .bias = {.qkv = false, .out = false, .mlp = false},
          .rotary = keys.rotary.table(rotated == 0 ? s.head_dim : rotated)};
}

FolderNames llama_layout_names(const std::vector<nn::ExternalName>& particular) {
  FolderNames names{.outside = {{"embedding", {"model.embed_tokens"}}, {"norm", {"model.norm"}}, {"head", {"lm_head"}}},
                    .blocks = "model.layers.",
                    .in_block = particular};
  const nn::ExternalName common[] = {{"norm_1", {"input_layernorm"}},
                                     {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                                     {"attention.q_norm", {"self_attn.q_norm"}},
                                     {"attention.k_norm", {"self_attn.k_norm"}},
                                     {"attention.out", {"self_attn.o_proj"}},
                                     {"norm_2", {"post_attention_layernorm"}},
                                     {"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
                                     {"mlp.down", {"mlp.down_proj"}}};
  // added last, because the first matching row counts
  names.in_block.insert(names.in_block.end(), std::begin(common), std::end(common));
  return names;
}

ModelShape read_llama_layout(const FolderConfig& c, const LlamaLayoutDefaults& defaults) {
  const auto heads = c.at<int64_t>("num_attention_heads"), hidden = c.at<int64_t>("hidden_size");
  const bool is_null = c.says_null("num_key_value_heads");
  require(!is_null || defaults.null_means_all_heads, "model", "num_key_value_heads of a ", c.family(),
          " must be an integer: got null; set it to the number of key and value heads");
  const int64_t kv_heads = is_null || defaults.kv_heads == 0 ? heads : defaults.kv_heads;
  return {.vocabulary = c.at<int64_t>("vocab_size"),
          .hidden = hidden,
          .layers = c.at<int64_t>("num_hidden_layers"),
          .heads = heads,
          .kv_heads = c.value("num_key_value_heads", kv_heads),
          .head_dim = c.value("head_dim", hidden / std::max<int64_t>(1, heads)),
          .ffn = c.at<int64_t>("intermediate_size"),
          .positions = c.at<int64_t>("max_position_embeddings"),
          .norm_epsilon = c.value("rms_norm_eps", defaults.norm_epsilon),
          .tied = c.value("tie_word_embeddings", defaults.tied)};
}

LlamaLayoutKeys read_llama_keys(const FolderConfig& c, const RotaryReading& reading,
                                std::pair<const char*, const char*> activation) {
  return {.rotary = read_rotary(c, reading), .activation = read_activation(c, activation.first, activation.second)};
}

nlohmann::json write_llama_layout(const ModelShape& s, const LlamaLayoutKeys& keys, const char* model_type,
                                  const char* architecture) {
  nlohmann::json config{{"architectures", {architecture}},   {"model_type", model_type},
                        {"vocab_size", s.vocabulary},        {"hidden_size", s.hidden},
                        {"num_hidden_layers", s.layers},     {"num_attention_heads", s.heads},
                        {"num_key_value_heads", s.kv_heads}, {"head_dim", s.head_dim},
                        {"intermediate_size", s.ffn},        {"max_position_embeddings", s.positions},
                        {"rms_norm_eps", s.norm_epsilon},    {"tie_word_embeddings", s.tied},
                        {"attention_dropout", 0.0},          {"hidden_act", keys.activation}};
  write_rotary(keys.rotary, config);
  return config;
}

}  // namespace colossal::models
