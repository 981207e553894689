#include "colossal/models/families/gptj.h"

#include <memory>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/fused_heads.h"
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

ModelShape from_json(const nlohmann::json& j) {
  const FolderConfig c(j, "GPT-J");
  ModelShape s = sized(c.at<int64_t>("vocab_size"), c.at<int64_t>("n_embd"), c.at<int64_t>("n_layer"),
                       c.at<int64_t>("n_head"), c.at<int64_t>("rotary_dim"));
  s.positions = c.at<int64_t>("n_positions");
  s.ffn = c.value("n_inner", s.ffn);
  s.norm_epsilon = c.value("layer_norm_epsilon", 1e-5);
  s.dropout = c.value("resid_pdrop", 0.0);
  s.tied = c.value("tie_word_embeddings", false);
  s.own = GptjSizes{read_activation(c, "activation_function", "gelu_new"), c.at<int64_t>("rotary_dim")};
  return s;
}

void check_training(const FolderConfig& c, const ModelShape& s) {
  c.must_be_to_train("embd_pdrop", s.dropout);
  c.must_be_to_train("attn_pdrop", 0);
}

nlohmann::json to_json(const ModelShape& s) {
  const auto own = s.own.as<GptjSizes>();
  nlohmann::json j{{"architectures", {"GPTJForCausalLM"}},
                   {"model_type", "gptj"},
                   {"vocab_size", s.vocabulary},
                   {"n_embd", s.hidden},
                   {"n_layer", s.layers},
                   {"n_head", s.heads},
                   {"n_positions", s.positions},
                   {"n_inner", s.ffn},
                   {"rotary", true},
                   {"rotary_dim", own.rotary_features},
                   {"activation_function", own.activation},
                   {"layer_norm_epsilon", s.norm_epsilon},
                   {"resid_pdrop", s.dropout},
                   {"embd_pdrop", s.dropout},
                   {"attn_pdrop", 0.0},
                   {"tie_word_embeddings", s.tied}};
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
