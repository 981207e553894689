#include "colossal/models/families/gpt_neox.h"

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

void NeoxSizes::fields(Fields& f) {
  activation_field(f, activation);
  f.flag("parallel", parallel,
         "parallel branches: attention and feed-forward layer both read the block's input, each through its norm");
  f.flag("attention_bias", attention_bias, "biases in linear layers of attention");
  f.number("rotary_share", rotary_share, "of each head", "share of the features that rotary positions rotate", 0, 1);
  rotary.fields(f);
}

int64_t NeoxSizes::turned(int64_t head_dim) const {
  return static_cast<int64_t>(static_cast<double>(head_dim) * rotary_share);
}

namespace gpt_neox {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  using Branches = BlockVariant::Branches;
  const auto own = s.own.as<NeoxSizes>();
  return make_decoder(s,
                      {.block = {.branches = own.parallel ? Branches::TwoNorms : Branches::InTurn,
                                 .activation = ops::activation(own.activation).plain,
                                 .bias = {.qkv = own.attention_bias, .out = own.attention_bias},
                                 .rotary = own.rotary.table(own.turned(s.head_dim))}},
                      layers);
}

/// `key`: name of the share at the place where the user set it, for messages. Returns the number of rotated features.
int64_t checked_features(const NeoxSizes& own, int64_t head_dim, const std::string& key) {
  const int64_t turned = own.turned(head_dim);
  require(turned > 0 && turned % 2 == 0, "model", key, " must rotate an even number of features of each head: got ",
          own.rotary_share, ", which rotates ", turned, " of ", head_dim);
  return turned;
}

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  const auto own = s.own.as<NeoxSizes>();
  settle_rotary(own.rotary, checked_features(own, s.head_dim, "rotary_share"), s);
  refuse_free_heads(s, "a GPT-NeoX");
}

ModelShape sized(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, double share = 0.25) {
  ModelShape s = gpt_layout(vocabulary, hidden, layers, heads);
  s.tied = false;
  s.own = NeoxSizes{.rotary_share = share};
  return s;
}

std::vector<Preset> presets() {
  // Pythia: Biderman et al. 2023, table 1; GPT-NeoX-20B: Black et al. 2022. Vocabularies as their folders have them.
  ModelShape neox_20b = sized(50432, 6144, 44, 64);
  neox_20b.own = NeoxSizes{.activation = "gelu_fast"};
  return {{"pythia-tiny", sized(257, 128, 4, 4, 0.25)}, {"pythia-70m", sized(50304, 512, 6, 8)},
          {"pythia-160m", sized(50304, 768, 12, 12)},   {"pythia-410m", sized(50304, 1024, 24, 16)},
          {"pythia-1b", sized(50304, 2048, 16, 8)},     {"pythia-1.4b", sized(50304, 2048, 24, 16)},
          {"pythia-2.8b", sized(50304, 2560, 32, 32)},  {"pythia-6.9b", sized(50432, 4096, 32, 32)},
          {"pythia-12b", sized(50688, 5120, 36, 40)},   {"gpt-neox-20b", neox_20b}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  return names_in_folder(s,
                         {.outside = {{"embedding", {"gpt_neox.embed_in"}},
                                      {"norm", {"gpt_neox.final_layer_norm"}},
                                      {"head", {"embed_out"}}},
                          .blocks = "gpt_neox.layers.",
                          .in_block = {{"norm_1", {"input_layernorm"}},
                                       {"attention.qkv", heads_in_groups("attention.query_key_value", s.attention())},
                                       {"attention.out", {"attention.dense"}},
                                       {"norm_2", {"post_attention_layernorm"}},
                                       {"mlp.up", {"mlp.dense_h_to_4h"}},
                                       {"mlp.down", {"mlp.dense_4h_to_h"}}}});
}

void keys(FolderKeys& k, ModelShape& s, NeoxSizes& own) {
  k.optional("vocab_size", s.vocabulary, 50432);
  k.required("hidden_size", s.hidden);
  k.required("num_hidden_layers", s.layers);
  k.required("num_attention_heads", s.heads);
  if (k.reads()) s = gpt_layout(s.vocabulary, s.hidden, s.layers, s.heads);
  k.required("intermediate_size", s.ffn);
  k.optional("max_position_embeddings", s.positions, 2048);
  k.optional("layer_norm_eps", s.norm_epsilon, 1e-5);
  k.optional("hidden_dropout", s.dropout, 0.0);
  k.written("attention_dropout", 0.0);
  k.optional("tie_word_embeddings", s.tied, false);
  activation_key(k, "hidden_act", own.activation, "gelu");
  k.optional("use_parallel_residual", own.parallel, true);
  k.optional("attention_bias", own.attention_bias, true);
  rotary_share_key(k, "rotary_pct", own.rotary_share, 0.25);
  rotary_keys(k, own.rotary);
  // Folders of transformers 4 store the base under a name of its own.
  const double theta = own.rotary.theta;
  k.optional("rotary_emb_base", own.rotary.theta, 10000);
  if (k.reads() && k.config().object(rotary_object(k.config())).has("rope_theta")) own.rotary.theta = theta;
}

ModelShape from_json(const nlohmann::json& j) {
  const FolderConfig c(j, "GPT-NeoX");
  ModelShape s = read_folder(c, keys);
  const auto own = s.own.as<NeoxSizes>();
  const bool is_in_object = c.object(rotary_object(c)).has("partial_rotary_factor");
  const bool has_valid_sizes = s.heads > 0 && s.hidden % s.heads == 0 && own.rotary_share >= 0 && own.rotary_share <= 1;
  if (has_valid_sizes)  // otherwise the registry refuses the sizes
    checked_features(
        own, s.hidden / s.heads,
        is_in_object ? concat(rotary_object(c), ".partial_rotary_factor of config.json") : "rotary_pct of config.json");
  return s;
}

nlohmann::json to_json(const ModelShape& s) { return write_folder("gpt_neox", "GPTNeoXForCausalLM", s, keys); }

}  // namespace gpt_neox

Architecture gpt_neox_architecture() {
  using namespace gpt_neox;
  return {.name = "gpt-neox",
          .own = NeoxSizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {
              .model_type = "gpt_neox",
              .names = external_names,
              .from_json = from_json,
              .to_json = to_json,
              .check_training = refuse_attention_dropout,
              .prefix = "gpt_neox.",
              .head = "embed_out.weight",
              .ignored = {causal_mask("*.attention.bias"), causal_mask("*.attention.masked_bias"), rotary_table()}}};
}

}  // namespace colossal::models
