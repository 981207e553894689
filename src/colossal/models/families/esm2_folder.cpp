#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/models/families/esm2.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {
namespace esm2 {  // a namespace of its own, because every family has functions of these names

bool matches(const nlohmann::json& config) {
  const auto folds = config.find("is_folding_model");
  return folds == config.end() || *folds != true;
}

void keys(FolderKeys& k, ModelShape& s, Esm2Sizes& own) {
  k.required("vocab_size", s.vocabulary);
  k.required("hidden_size", s.hidden);
  k.required("num_hidden_layers", s.layers);
  k.required("num_attention_heads", s.heads);
  if (k.reads()) s.kv_heads = s.heads;
  if (k.reads()) s.head_dim = s.hidden / std::max<int64_t>(1, s.heads);  // validate() refuses values that do not fit
  k.required("intermediate_size", s.ffn);
  k.optional("max_position_embeddings", s.positions, 1026);
  k.optional("layer_norm_eps", s.norm_epsilon, 1e-12);
  k.optional("hidden_dropout_prob", s.dropout, 0.1);
  k.written("attention_probs_dropout_prob", 0.0);
  k.optional("rope_theta", own.rope_theta, 10000);
  k.optional("token_dropout", own.token_dropout, false);
  if (own.token_dropout || k.writes()) k.required("mask_token_id", own.mask_token);
  k.optional("tie_word_embeddings", s.tied, true);
  k.fixed("emb_layer_norm_before", false);
  k.only("is_decoder", false);
  k.written("is_folding_model", false);
  k.written("pad_token_id", s.vocabulary > 1 ? nlohmann::json(1) : nlohmann::json());
}

ModelShape from_json(const nlohmann::json& j) {
  const FolderConfig c(j, "ESM-2");
  const auto positions = c.value("position_embedding_type", "absolute");  // the default of transformers' class
  require(positions == "rotary", "model", "position_embedding_type of an ESM-2 must be rotary: got ",
          printable(positions), ", as ESM-1b has it; use a folder of ESM-2");
  return read_folder(c, keys);
}

nlohmann::json to_json(const ModelShape& shape) {
  ModelShape s = shape;
  auto own = s.own.as<Esm2Sizes>();
  if (own.mask_token < 0) own.mask_token = s.vocabulary - 1;
  s.own = own;
  nlohmann::json j = write_folder("esm", "EsmForMaskedLM", s, keys);
  j["position_embedding_type"] = "rotary";
  return j;
}

void check_training(const FolderConfig& c, const ModelShape&) {
  c.must_be_to_train("attention_probs_dropout_prob", 0.0, 0.1);
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const std::string self = "attention.self.", last = concat("blocks.", s.layers - 1, ".", kEsm2EndNorm);
  return names_in_folder(s, {.outside = {{"embedding", {"esm.embeddings.word_embeddings"}},
                                         {last, {"esm.encoder.emb_layer_norm_after"}},
                                         {"head.transform", {"lm_head.dense"}},
                                         {"head.norm", {"lm_head.layer_norm"}},
                                         {"head.bias", {"lm_head.bias"}},
                                         {"head", {"lm_head.decoder"}}},
                             .blocks = "esm.encoder.layer.",
                             .in_block = {{"norm_1", {"attention.LayerNorm"}},
                                          {"attention.qkv", {self + "query", self + "key", self + "value"}},
                                          {"attention.out", {"attention.output.dense"}},
                                          {"norm_2", {"LayerNorm"}},
                                          {"mlp.up", {"intermediate.dense"}},
                                          {"mlp.down", {"output.dense"}}}});
}

/// Returns tensors of folders with and without the prefix of the model without a head.
std::vector<IgnoredTensor> ignored_tensors() {
  const std::string positions = "positions are rotary, without a table", contacts = "contacts are not predicted",
                    pooler = "the head for masked tokens does not pool";
  std::vector<IgnoredTensor> tensors;
  for (const std::string prefix : {"esm.", ""}) {
    tensors.push_back(rotary_table(prefix + "encoder.layer.*.attention.self.rotary_embeddings.inv_freq"));
    tensors.push_back({prefix + "embeddings.position_ids", positions});
    tensors.push_back({prefix + "embeddings.position_embeddings.weight", positions});
    tensors.push_back({prefix + "contact_head.regression.weight", contacts});
    tensors.push_back({prefix + "contact_head.regression.bias", contacts});
    tensors.push_back({prefix + "pooler.dense.weight", pooler});
    tensors.push_back({prefix + "pooler.dense.bias", pooler});
  }
  for (const std::string layer : {"", "dense.", "out_proj."})
    for (const char* parameter : {"weight", "bias"})
      tensors.push_back({"classifier." + layer + parameter, "a head of another objective"});
  return tensors;
}

}  // namespace esm2

HuggingFace esm2_folder() {
  return {.model_type = "esm",
          .names = esm2::external_names,
          .from_json = esm2::from_json,
          .to_json = esm2::to_json,
          .check_training = esm2::check_training,
          .prefix = "esm.",
          .head = "lm_head.decoder.weight",
          .ignored = esm2::ignored_tensors(),
          .may_lack = {"head.transform.*", "head.norm.*", "head.bias"},
          .old_endings = {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}},
          .matches = esm2::matches};
}

}  // namespace colossal::models
