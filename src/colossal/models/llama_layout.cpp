#include "colossal/models/llama_layout.h"

#include <algorithm>

#include "colossal/base/error.h"
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

void llama_layout_keys(FolderKeys& k, ModelShape& s, LlamaLayoutKeys& own, const LlamaLayoutReading& reading) {
  constexpr const char* kKvHeads = "num_key_value_heads";
  k.required("num_attention_heads", s.heads);
  k.required("hidden_size", s.hidden);
  const bool is_null = k.reads() && k.config().says_null(kKvHeads);
  require(!is_null || reading.null_means_all_heads, "model", kKvHeads, " of a ", k.family(),
          " must be an integer: got null; set it to the number of key and value heads");
  k.required("vocab_size", s.vocabulary);
  k.required("num_hidden_layers", s.layers);
  k.optional(kKvHeads, s.kv_heads, is_null || reading.kv_heads == 0 ? s.heads : reading.kv_heads);
  k.optional("head_dim", s.head_dim,
             reading.head_dim == 0 ? s.hidden / std::max<int64_t>(1, s.heads) : reading.head_dim);
  k.required("intermediate_size", s.ffn);
  k.required("max_position_embeddings", s.positions);
  k.optional("rms_norm_eps", s.norm_epsilon, reading.norm_epsilon);
  k.optional("tie_word_embeddings", s.tied, reading.tied);
  k.written("attention_dropout", 0.0);
  rotary_keys(k, own.rotary, reading.rotary);
  activation_key(k, reading.activation.first, own.activation, reading.activation.second);
}

}  // namespace colossal::models
