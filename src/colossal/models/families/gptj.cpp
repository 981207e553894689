#include "colossal/models/families/gptj.h"

#include <memory>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/ops/activation.h"
#include "colossal/ops/rotary.h"

namespace colossal::models {

void GptjSizes::fields(Fields& f) {
  activation_field(f, activation);
  f.integer("rotary_features", rotary_features, "of each head", "number of features that rotary positions rotate", 2,
            kMaxSize);
}

namespace gptj {  // a namespace of its own, because every family has functions of these names

Model make(const ModelShape& s, nn::Layers& layers) {
  const auto own = s.own.as<GptjSizes>();
  return make_decoder(s,
                      {.block = {.branches = BlockVariant::Branches::OneNorm,
                                 .activation = ops::activation(own.activation).plain,
                                 .bias = {.qkv = false, .out = false},
                                 .rotary = std::make_shared<const ops::RotaryTable>(own.rotary_features, 10000)},
                       .head_bias = true},
                      layers);
}

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  const int64_t turned = s.own.as<GptjSizes>().rotary_features;
  require(turned <= s.head_dim && turned % 2 == 0, "model", "rotary_features must be even and at most head_dim, ",
          s.head_dim, ": got ", turned);
  refuse_free_heads(s, "a GPT-J");
}

ModelShape sized(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads, int64_t turned) {
  ModelShape s = gpt_layout(vocabulary, hidden, layers, heads);
  s.tied = false;
  s.own = GptjSizes{.rotary_features = turned};
  return s;
}

std::vector<Preset> presets() {
  return {{"gptj-tiny", sized(257, 128, 4, 4, 16)}, {"gptj-6b", sized(50400, 4096, 28, 16, 64)}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const int64_t turned = s.own.as<GptjSizes>().rotary_features;
  std::vector<nn::ExternalRows> qkv;
  for (const char* name : {"attn.q_proj", "attn.k_proj"})
    for (const nn::ExternalRows& rows : heads_of_pairs(name, s.heads, s.head_dim, turned)) qkv.push_back(rows);
  qkv.emplace_back("attn.v_proj", 0, s.hidden);
  return names_in_folder(
      s, {.outside = {{"embedding", {"transformer.wte"}}, {"norm", {"transformer.ln_f"}}, {"head", {"lm_head"}}},
          .blocks = "transformer.h.",
          .in_block = {{"norm_1", {"ln_1"}},
                       {"attention.qkv", qkv},
                       {"attention.out", {"attn.out_proj"}},
                       {"mlp.up", {"mlp.fc_in"}},
                       {"mlp.down", {"mlp.fc_out"}}}});
}

void keys(FolderKeys& k, ModelShape& s, GptjSizes& own) {
  k.required("vocab_size", s.vocabulary);
  k.required("n_embd", s.hidden);
  k.required("n_layer", s.layers);
  k.required("n_head", s.heads);
  if (k.reads()) s = gpt_layout(s.vocabulary, s.hidden, s.layers, s.heads);
  k.written("rotary", true);
  k.required("rotary_dim", own.rotary_features);
  k.required("n_positions", s.positions);
  k.optional("n_inner", s.ffn, s.ffn);
  k.optional("layer_norm_epsilon", s.norm_epsilon, 1e-5);
  k.optional("resid_pdrop", s.dropout, 0.0);
  k.written("embd_pdrop", s.dropout);
  k.written("attn_pdrop", 0.0);
  k.optional("tie_word_embeddings", s.tied, false);
  activation_key(k, "activation_function", own.activation, "gelu_new");
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "GPT-J"), keys); }

void check_training(const FolderConfig& c, const ModelShape& s) {
  c.must_be_to_train("embd_pdrop", s.dropout);
  c.must_be_to_train("attn_pdrop", 0);
}

nlohmann::json to_json(const ModelShape& s) {
  nlohmann::json j = write_folder("gptj", "GPTJForCausalLM", s, keys);
  write_tokens(j, s.vocabulary, 50256);
  return j;
}

}  // namespace gptj

Architecture gptj_architecture() {
  using namespace gptj;
  return {.name = "gptj",
          .own = GptjSizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "gptj",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = check_training,
                           .prefix = "transformer.",
                           .head = "lm_head.weight",
                           .ignored = {causal_mask("*.attn.bias"), causal_mask("*.attn.masked_bias"),
                                       rotary_table("*.attn.embed_positions")}}};
}

}  // namespace colossal::models
