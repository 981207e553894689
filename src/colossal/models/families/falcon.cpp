#include "colossal/models/families/falcon.h"

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

void FalconSizes::fields(Fields& f) {
  activation_field(f, activation);
  f.flag("parallel", parallel, "parallel branches: attention and feed-forward layer both read the block's input");
  f.integer("norms", norms, "", "number of norms in front of parallel branches: 1 = shared by both, 2 = one each", 1,
            2);
  f.flag("bias", bias, "biases in linear layers");
  f.flag("alibi", alibi, "linear biases of attention scores (ALiBi) instead of rotary positions");
  rotary.fields(f);
}

namespace falcon {  // a namespace of its own, because every family has functions of these names

/// Returns true for the new architecture. Folders of the first one say only whether all heads share k and v or none do.
/// Folders of the new one give the number of kv heads, and have only parallel branches.
bool is_new(const ModelShape& s) {
  const auto own = s.own.as<FalconSizes>();
  return own.parallel && (own.norms == 2 || (s.kv_heads != 1 && s.kv_heads != s.heads));
}

Model make(const ModelShape& s, nn::Layers& layers) {
  using Branches = BlockVariant::Branches;
  const auto own = s.own.as<FalconSizes>();
  const Branches both = own.norms == 2 ? Branches::TwoNorms : Branches::OneNorm;
  BlockVariant block{.branches = own.parallel ? both : Branches::InTurn,
                     .activation = ops::activation(own.activation).plain,
                     .bias = {.qkv = own.bias, .out = own.bias, .mlp = own.bias}};
  if (own.alibi)  // Falcon also scales the ALiBi biases
    block.attention = {.alibi = true, .alibi_scale = 1 / std::sqrt(static_cast<double>(s.head_dim))};
  else
    block.rotary = own.rotary.table(s.head_dim);
  return make_decoder(s, {.block = block, .embedding_dropout = false}, layers);
}

void settle(ModelShape& s) {
  const auto own = s.own.as<FalconSizes>();
  if (!own.alibi) settle_rotary(own.rotary, s.head_dim, s);
  require(!own.alibi || own.rotary == RotaryKeys(), "model",
          "rope_ keys must be unset for a Falcon with alibi, which has no rotary positions; remove them");
  require(own.parallel || own.norms == 1, "model", "norms must be 1 for a Falcon with parallel = false: got ",
          own.norms);
  require(own.parallel || s.kv_heads == 1 || s.kv_heads == s.heads, "model",
          "kv_heads must be 1 or heads for a Falcon with parallel = false, which has heads = ", s.heads, ": got ",
          s.kv_heads);
  refuse_free_heads(s, "a Falcon");
}

ModelShape sized(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                 const FalconSizes& own) {
  ModelShape s = gpt_layout(vocabulary, hidden, layers, heads);
  s.kv_heads = kv_heads;
  s.own = own;
  return s;
}

std::vector<Preset> presets() {
  // Almazrouei et al. 2023, table 16; RefinedWeb's models (arXiv:2306.01116) have ALiBi.
  const FalconSizes alibi{.parallel = false, .bias = true, .alibi = true}, two_norms{.norms = 2};
  ModelShape falcon_180b = sized(65024, 14848, 80, 232, 8, two_norms);
  falcon_180b.tied = true;
  return {{"falcon-tiny", sized(257, 128, 4, 4, 1, {})},
          {"falcon-rw-1b", sized(50304, 2048, 24, 32, 32, alibi)},
          {"falcon-7b", sized(65024, 4544, 32, 71, 1, {})},
          {"falcon-40b", sized(65024, 8192, 60, 128, 8, two_norms)},
          {"falcon-180b", falcon_180b}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const auto own = s.own.as<FalconSizes>();
  const bool has_two = own.parallel && own.norms == 2;
  return names_in_folder(
      s, {.outside = {{"embedding", {"transformer.word_embeddings"}},
                      {"norm", {"transformer.ln_f"}},
                      {"head", {"lm_head"}}},
          .blocks = "transformer.h.",
          .in_block = {{"norm_1", {has_two ? "ln_attn" : "input_layernorm"}},
                       {"attention.qkv", heads_in_groups("self_attention.query_key_value", s.attention())},
                       {"attention.out", {"self_attention.dense"}},
                       {"norm_2", {has_two ? "ln_mlp" : "post_attention_layernorm"}},
                       {"mlp.up", {"mlp.dense_h_to_4h"}},
                       {"mlp.down", {"mlp.dense_4h_to_h"}}}});
}

void keys(FolderKeys& k, ModelShape& s, FalconSizes& own) {
  bool is_new = k.writes() && falcon::is_new(s);
  k.optional("new_decoder_architecture", is_new, false);
  k.required("hidden_size", s.hidden, "n_embed");
  k.required("num_attention_heads", s.heads);
  bool shares_all = s.kv_heads == 1;
  if (k.writes() || !is_new) k.optional("multi_query", shares_all, true);
  activation_key(k, "activation", own.activation, "gelu");
  k.optional("parallel_attn", own.parallel, true);
  if (k.reads() || is_new) k.optional("num_ln_in_parallel_attn", own.norms, is_new ? 2 : 1);
  k.optional("bias", own.bias, false);
  k.optional("alibi", own.alibi, false);
  if (is_new) k.only("parallel_attn", true);  // because transformers expects norms there that it has not made
  if (!is_new) k.only("num_ln_in_parallel_attn", 1);
  if (!is_new && !shares_all) k.only("num_kv_heads", s.heads);
  k.required("vocab_size", s.vocabulary);
  k.required("num_hidden_layers", s.layers);
  if (k.reads()) s = gpt_layout(s.vocabulary, s.hidden, s.layers, s.heads);
  if (k.reads() && shares_all)
    s.kv_heads = 1;
  else
    k.optional("num_kv_heads", s.kv_heads, s.heads);
  k.optional("ffn_hidden_size", s.ffn, s.ffn);
  k.optional("max_position_embeddings", s.positions, 2048);
  k.optional("layer_norm_epsilon", s.norm_epsilon, 1e-5);
  k.optional("hidden_dropout", s.dropout, 0.0);
  k.written("attention_dropout", 0.0);
  k.optional("tie_word_embeddings", s.tied, true);
  if (!own.alibi) rotary_keys(k, own.rotary);
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "Falcon"), keys); }

nlohmann::json to_json(const ModelShape& s) { return write_folder("falcon", "FalconForCausalLM", s, keys); }

}  // namespace falcon

Architecture falcon_architecture() {
  using namespace falcon;
  return {.name = "falcon",
          .own = FalconSizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "falcon",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = refuse_attention_dropout,
                           .prefix = "transformer.",
                           .head = "lm_head.weight",
                           .ignored = {rotary_table(), rotary_table("*.maybe_rotary.inv_freq")}}};
}

}  // namespace colossal::models
