#include "colossal/models/families/opt.h"

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/activation_key.h"
#include "colossal/models/built_in.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"
#include "colossal/ops/activation.h"

namespace colossal::models {

void OptSizes::fields(Fields& f) {
  activation_field(f, activation);
  f.flag("norm_first", norm_first, "norms in front of the branches (pre-norm) instead of after the sums (post-norm)");
  f.flag("final_norm", final_norm, "norm in front of the head, with norm_first");
  f.flag("bias", bias, "biases in linear layers");
  f.integer("word_features", word_features, "",
            "width of the embedding's rows, which are projected to hidden features and back; 0 = hidden", 0, kMaxSize);
}

namespace opt {  // a namespace of its own, because every family has functions of these names

constexpr double kEpsilon = 1e-5;  // epsilon of all its norms; folders do not store it

Model make(const ModelShape& s, nn::Layers& layers) {
  using Placement = BlockVariant::Placement;
  const auto own = s.own.as<OptSizes>();
  return make_decoder(s,
                      {.block = {.placement = own.norm_first ? Placement::Before : Placement::After,
                                 .activation = ops::activation(own.activation).plain,
                                 .bias = {.qkv = own.bias, .out = own.bias, .mlp = own.bias}},
                       .learned_positions = true,
                       .position_offset = 2,
                       .embedding_dropout = false,
                       .word_features = own.word_features == s.hidden ? 0 : own.word_features,
                       .final_norm = own.norm_first && own.final_norm},
                      layers);
}

void settle(ModelShape& s) {
  refuse_grouped_queries(s);
  require(s.norm_epsilon == kEpsilon, "model", "norm_epsilon of an OPT must be ", kEpsilon,
          ", because its config.json has no key for it: got ", s.norm_epsilon);
  refuse_free_heads(s, "an OPT");
  const auto own = s.own.as<OptSizes>();
  require(own.norm_first || own.final_norm, "model",
          "final_norm has no effect with norm_first = false, where no norm precedes the head: got false; remove it");
}

ModelShape sized(int64_t vocabulary, int64_t hidden, int64_t layers, int64_t heads) {
  ModelShape s = gpt_layout(vocabulary, hidden, layers, heads);
  s.norm_epsilon = kEpsilon;
  return s;
}

std::vector<Preset> presets() {
  // Zhang et al. 2022, table 1.
  ModelShape opt_350m = sized(50272, 1024, 24, 16);
  opt_350m.own = OptSizes{.norm_first = false, .word_features = 512};
  return {{"opt-tiny", sized(257, 128, 4, 4)},
          {"opt-125m", sized(50272, 768, 12, 12)},
          {"opt-350m", opt_350m},
          {"opt-1.3b", sized(50272, 2048, 24, 32)},
          {"opt-2.7b", sized(50272, 2560, 32, 32)},
          {"opt-6.7b", sized(50272, 4096, 32, 32)},
          {"opt-13b", sized(50272, 5120, 40, 40)},
          {"opt-30b", sized(50272, 7168, 48, 56)},
          {"opt-66b", sized(50272, 9216, 64, 72)},
          {"opt-175b", sized(50272, 12288, 96, 96)}};
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  return names_in_folder(s,
                         {.outside = {{"embedding", {"model.decoder.embed_tokens"}},
                                      {"embedding_projection", {"model.decoder.project_in"}},
                                      {"positions", {"model.decoder.embed_positions"}},
                                      {"norm", {"model.decoder.final_layer_norm"}},
                                      {"head.projection", {"model.decoder.project_out"}},
                                      {"head", {"lm_head"}}},
                          .blocks = "model.decoder.layers.",
                          .in_block = {{"norm_1", {"self_attn_layer_norm"}},
                                       {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                                       {"attention.out", {"self_attn.out_proj"}},
                                       {"norm_2", {"final_layer_norm"}},
                                       {"mlp.up", {"fc1"}},
                                       {"mlp.down", {"fc2"}}}});
}

void keys(FolderKeys& k, ModelShape& s, OptSizes& own) {
  k.required("vocab_size", s.vocabulary);
  k.required("hidden_size", s.hidden);
  k.required("num_hidden_layers", s.layers);
  k.required("num_attention_heads", s.heads);
  if (k.reads()) s = sized(s.vocabulary, s.hidden, s.layers, s.heads);
  k.required("ffn_dim", s.ffn);
  k.required("max_position_embeddings", s.positions);
  k.optional("dropout", s.dropout, 0.1);
  k.written("attention_dropout", 0.0);
  k.written("layerdrop", 0.0);
  k.optional("tie_word_embeddings", s.tied, true);
  int64_t features = own.word_features == 0 ? s.hidden : own.word_features;
  k.optional("word_embed_proj_dim", features, s.hidden);
  own.word_features = features == s.hidden ? 0 : features;
  k.optional("do_layer_norm_before", own.norm_first, true);
  activation_key(k, "activation_function", own.activation, "relu");
  bool lacks_norm = !own.final_norm;
  if (k.writes() || own.norm_first) k.optional("_remove_final_layer_norm", lacks_norm, false);
  own.final_norm = !lacks_norm;
  k.optional("enable_bias", own.bias, true);
  k.fixed("layer_norm_elementwise_affine", true);
}

ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "OPT"), keys); }

void check_training(const FolderConfig& c, const ModelShape&) {
  for (const char* key : {"attention_dropout", "layerdrop"}) c.must_be_to_train(key, 0);
}

nlohmann::json to_json(const ModelShape& s) { return write_folder("opt", "OPTForCausalLM", s, keys); }

}  // namespace opt

Architecture opt_architecture() {
  using namespace opt;
  return {.name = "opt",
          .own = OptSizes{},
          .presets = presets(),
          .make = make,
          .settle = settle,
          .hugging_face = {.model_type = "opt",
                           .names = external_names,
                           .from_json = from_json,
                           .to_json = to_json,
                           .check_training = check_training,
                           .prefix = "model.",
                           .head = "lm_head.weight"}};
}

}  // namespace colossal::models
