#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/ops/activation.h"

namespace colossal::models {
namespace bloom {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  return make_decoder(s,
                      {.block = {.activation = ops::gelu, .attention = {.alibi = true}},
                       .embedding_norm = true,
                       .embedding_dropout = false},
                      layers);
}

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  require(s.ffn == 4 * s.hidden, "model", "ffn of a BLOOM must be 4 * hidden, ", 4 * s.hidden,
          ", because its config.json has no key for it: got ", s.ffn);
  refuse_free_heads(s, "a BLOOM");
}

std::vector<Preset> presets() {
  // BigScience 2022, table 5.
  return {{"bloom-tiny", gpt_layout(257, 128, 4, 4)},        {"bloom-560m", gpt_layout(250880, 1024, 24, 16)},
          {"bloom-1b1", gpt_layout(250880, 1536, 24, 16)},   {"bloom-1b7", gpt_layout(250880, 2048, 24, 16)},
          {"bloom-3b", gpt_layout(250880, 2560, 30, 32)},    {"bloom-7b1", gpt_layout(250880, 4096, 30, 32)},
          {"bloom-176b", gpt_layout(250880, 14336, 70, 112)}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  return names_in_folder(
      s, {.outside = {{"embedding", {"transformer.word_embeddings"}},
                      {"embedding_norm", {"transformer.word_embeddings_layernorm"}},
                      {"norm", {"transformer.ln_f"}},
                      {"head", {"lm_head"}}},
          .blocks = "transformer.h.",
          .in_block = {{"norm_1", {"input_layernorm"}},
                       {"attention.qkv", heads_in_groups("self_attention.query_key_value", s.attention())},
                       {"attention.out", {"self_attention.dense"}},
                       {"norm_2", {"post_attention_layernorm"}},
                       {"mlp.up", {"mlp.dense_h_to_4h"}},
                       {"mlp.down", {"mlp.dense_4h_to_h"}}}});
}

void keys(FolderKeys& k, ModelShape& s) {
  // transformers writes the first names, the folders of BigScience have the second ones
  k.required("vocab_size", s.vocabulary);
  k.required("hidden_size", s.hidden, "n_embed");
  k.required("n_layer", s.layers, "num_hidden_layers");
  k.required("n_head", s.heads, "num_attention_heads");
  if (k.reads()) s = gpt_layout(s.vocabulary, s.hidden, s.layers, s.heads);
  k.optional("seq_length", s.positions, s.positions);  // no result depends on it
  k.optional("layer_norm_epsilon", s.norm_epsilon, 1e-5);
  k.optional("hidden_dropout", s.dropout, 0.0);
  k.written("attention_dropout", 0.0);
  k.optional("tie_word_embeddings", s.tied, true);
  k.fixed("apply_residual_connection_post_layernorm", false);
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "BLOOM"), keys); }

nlohmann::json to_json(const ModelShape& s) { return write_folder("bloom", "BloomForCausalLM", s, keys); }

}  // namespace bloom

Architecture bloom_architecture() {
  using namespace bloom;
  return {.name = "bloom",
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "bloom",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = refuse_attention_dropout,
                           .prefix = "transformer.",
                           .head = "lm_head.weight"}};
}

}  // namespace colossal::models
