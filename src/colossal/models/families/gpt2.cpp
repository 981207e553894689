#include "colossal/models/families/gpt2.h"

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/decoder.h"
#include "colossal/models/expert_folder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/ops/activation.h"

namespace colossal::models {
void Gpt2Sizes::fields(Fields& f) {
  activation_field(f, activation);
  f.flag("scale_scores", scale_scores, "division of attention scores by the square root of head_dim");
  f.flag("scale_scores_by_layer", scale_scores_by_layer,
         "division of attention scores by the layer number, counted from 1");
  expert_table(f, experts);
}

namespace gpt2 {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<Gpt2Sizes>();
  const auto block = [&](int64_t layer) {
    double scale = own.scale_scores ? 1 / std::sqrt(static_cast<double>(s.head_dim)) : 1;
    if (own.scale_scores_by_layer) scale /= static_cast<double>(layer + 1);
    return BlockVariant{.activation = ops::activation(own.activation).plain, .attention = {.scale = scale}};
  };
  return make_decoder(s, {.blocks = with_experts(block, own.experts, s), .learned_positions = true}, layers);
}

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  settle_experts(s.own.as<Gpt2Sizes>().experts, s);
}

std::vector<Preset> presets() {
  // GPT-2: Radford et al. 2019, table 2. GPT-3: Brown et al. 2020 (arXiv:2005.14165), table 2.1.
  return {
      {"gpt2-tiny", gpt_layout(257, 128, 4, 4, 256)},         {"gpt2-small", gpt_layout(50257, 768, 12, 12, 1024)},
      {"gpt2-medium", gpt_layout(50257, 1024, 24, 16, 1024)}, {"gpt2-large", gpt_layout(50257, 1280, 36, 20, 1024)},
      {"gpt2-xl", gpt_layout(50257, 1600, 48, 25, 1024)},     {"gpt3-125m", gpt_layout(50257, 768, 12, 12, 2048)},
      {"gpt3-350m", gpt_layout(50257, 1024, 24, 16, 2048)},   {"gpt3-1.3b", gpt_layout(50257, 2048, 24, 32, 2048)},
      {"gpt3-2.7b", gpt_layout(50257, 2560, 32, 32, 2048)},   {"gpt3-6.7b", gpt_layout(50257, 4096, 32, 32, 2048)},
      {"gpt3-13b", gpt_layout(50257, 5120, 40, 40, 2048)},    {"gpt3-175b", gpt_layout(50257, 12288, 96, 96, 2048)}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  require_dense_form(s.own.as<Gpt2Sizes>().experts, "gpt2");
  return names_in_folder(s, {.outside = {{"embedding", {"transformer.wte"}},
                                         {"positions", {"transformer.wpe"}},
                                         {"norm", {"transformer.ln_f"}},
                                         {"head", {"lm_head"}}},
                             .blocks = "transformer.h.",
                             .in_block = {{"norm_1", {"ln_1"}},
                                          {"attention.qkv", {"attn.c_attn"}, /*transposed=*/true},
                                          {"attention.out", {"attn.c_proj"}, true},
                                          {"norm_2", {"ln_2"}},
                                          {"mlp.up", {"mlp.c_fc"}, true},
                                          {"mlp.down", {"mlp.c_proj"}, true}}});
}

void keys(FolderKeys& k, ModelShape& s, Gpt2Sizes& own) {
  k.required("vocab_size", s.vocabulary);
  k.required("n_embd", s.hidden);
  k.required("n_layer", s.layers);
  k.required("n_head", s.heads);
  if (k.reads()) s = gpt_layout(s.vocabulary, s.hidden, s.layers, s.heads);
  k.required("n_positions", s.positions);
  k.written("n_ctx", s.positions);
  k.optional("n_inner", s.ffn, s.ffn);
  k.optional("layer_norm_epsilon", s.norm_epsilon, 1e-5);
  k.optional("resid_pdrop", s.dropout, 0.1);
  k.written("embd_pdrop", s.dropout);
  k.written("attn_pdrop", 0.0);
  k.optional("tie_word_embeddings", s.tied, true);
  activation_key(k, "activation_function", own.activation, "gelu_new");
  k.optional("scale_attn_weights", own.scale_scores, true);
  k.optional("scale_attn_by_inverse_layer_idx", own.scale_scores_by_layer, false);
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "GPT-2"), keys); }

/// Our dropout is one for all. The dropout of scores, attn_pdrop, is ignored.
void check_training(const FolderConfig& c, const ModelShape& s) { c.must_be_to_train("embd_pdrop", s.dropout, 0.1); }

nlohmann::json to_json(const ModelShape& s) {
  require_dense_form(s.own.as<Gpt2Sizes>().experts, "gpt2");
  nlohmann::json j = write_folder("gpt2", "GPT2LMHeadModel", s, keys);
  write_tokens(j, s.vocabulary, 50256);
  return j;
}

}  // namespace gpt2

Architecture gpt2_architecture() {
  using namespace gpt2;
  return {.name = "gpt2",
          .own = Gpt2Sizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "gpt2",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = check_training,
                           .prefix = "transformer.",
                           .head = "lm_head.weight",
                           .ignored = {causal_mask("*.attn.bias"), causal_mask("*.attn.masked_bias")},
                           .own_training = expert_training_keys()}};
}

}  // namespace colossal::models
