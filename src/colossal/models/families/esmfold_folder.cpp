// ESMFold as transformers stores it: the class EsmForProteinFolding.
#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/models/families/esmfold.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/folder_names.h"

namespace colossal::models {
namespace esmfold {

constexpr const char* kClass = "EsmForProteinFolding";
constexpr double kTiny = 1e-8;  // under roots in the structure module

bool matches(const nlohmann::json& config) {
  const auto folds = config.find("is_folding_model");
  return folds != config.end() && *folds == true;
}

/// Visits the rows of an object within config.json.
template <class Rows>
void nested(FolderKeys& k, const char* key, const Rows& rows) {
  if (k.reads()) {
    const FolderConfig config = k.config().object(key);
    FolderKeys inner(config);
    rows(inner);
  } else {
    nlohmann::json config = nlohmann::json::object();
    FolderKeys inner(config);
    rows(inner);
    k.written(key, config);
  }
}

void structure_keys(FolderKeys& k, EsmfoldSizes& own) {
  k.optional("sequence_dim", own.structure, 384);
  k.optional("pairwise_dim", own.structure_pair, 128);
  k.optional("ipa_dim", own.point_width, 16);
  k.optional("resnet_dim", own.angle_hidden, 128);
  k.optional("num_heads_ipa", own.point_heads, 12);
  k.optional("num_qk_points", own.query_points, 4);
  k.optional("num_v_points", own.value_points, 8);
  k.optional("dropout_rate", own.structure_dropout, .1);
  k.optional("num_blocks", own.structure_layers, 8);
  k.optional("num_transition_layers", own.transitions, 1);
  k.optional("num_resnet_blocks", own.angle_blocks, 2);
  k.fixed("num_angles", 7);
  int64_t unit = static_cast<int64_t>(own.unit_angstrom);  // an integer in transformers
  k.optional("trans_scale_factor", unit, 10);
  if (k.reads()) own.unit_angstrom = static_cast<double>(unit);
  k.fixed("epsilon", kTiny);
  k.written("inf", 1e5);  // added to scores of padding, which have no weight here
}

void trunk_keys(FolderKeys& k, ModelShape& s, EsmfoldSizes& own) {
  k.optional("num_blocks", s.layers, 48);
  k.optional("sequence_state_dim", own.single, 1024);
  k.optional("pairwise_state_dim", own.pair, 128);
  k.optional("sequence_head_width", own.single_width, 32);
  k.optional("pairwise_head_width", own.pair_width, 32);
  k.optional("position_bins", own.position_bins, 32);
  k.optional("dropout", s.dropout, 0);
  k.fixed("layer_drop", 0.0);
  k.optional("max_recycles", own.passes, 4);
  k.written("chunk_size", nlohmann::json());  // changes no number
  nested(k, "structure_module", [&](FolderKeys& inner) { structure_keys(inner, own); });
}

void folding_keys(FolderKeys& k, ModelShape& s, EsmfoldSizes& own) {
  for (const char* key : {"bypass_lm", "use_esm_attn_map", "esm_ablate_pairwise", "esm_ablate_sequence"})
    k.fixed(key, false);
  k.fixed("esm_input_dropout", 0.0);
  k.written("fp16_esm", false);  // the dtype of the model is the user's choice
  k.optional("embed_aa", own.embeds_types, true);
  k.optional("lddt_head_hid_dim", own.lddt_hidden, 128);
  nested(k, "trunk", [&](FolderKeys& inner) { trunk_keys(inner, s, own); });
}

void keys(FolderKeys& k, ModelShape& s, EsmfoldSizes& own) {
  k.optional("hidden_size", s.hidden, 768);
  k.optional("num_hidden_layers", own.language_layers, 12);
  k.optional("num_attention_heads", s.heads, 12);
  k.optional("intermediate_size", s.ffn, 3072);
  check_sizes_read(k, {{"hidden_size", s.hidden}, {"num_attention_heads", s.heads}});
  k.optional("layer_norm_eps", s.norm_epsilon, 1e-12);
  k.optional("rope_theta", own.rope_theta, 10000);
  k.optional("token_dropout", own.token_dropout, false);
  k.optional("vocab_list", own.tokens, esm2_tokens());
  auto count = static_cast<int64_t>(own.tokens.size());
  k.optional("vocab_size", count, count);
  require(count == static_cast<int64_t>(own.tokens.size()), "model",
          "vocab_size of an ESMFold must count vocab_list: got ", count, " and ", own.tokens.size(), " tokens");
  k.fixed("emb_layer_norm_before", false);
  k.only("is_decoder", false);
  k.written("is_folding_model", true);
  k.written("position_embedding_type", "rotary");
  k.written("tie_word_embeddings", true);
  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"}) k.written(key, 0.0);
  for (const auto& [key, token] : {std::pair("mask_token_id", "<mask>"), std::pair("pad_token_id", "<pad>")}) {
    int64_t id = own.id_of(token);
    k.optional(key, id, id);
    require(id == own.id_of(token), "model", key, " of an ESMFold must be the place of ", token, " in vocab_list, ",
            own.id_of(token), ": got ", id);
  }
  nested(k, "esmfold_config", [&](FolderKeys& inner) { folding_keys(inner, s, own); });
  if (!k.reads()) return;
  s.kv_heads = s.heads;
  s.head_dim = s.hidden / s.heads;  // validate() refuses values that do not fit
  s.tied = false;
}

ModelShape from_json(const nlohmann::json& j) {
  const FolderConfig config(j, "ESMFold");
  const auto positions = config.value("position_embedding_type", "absolute");  // the default of transformers' class
  require(positions == "rotary", "model", "position_embedding_type of an ESMFold must be rotary: got ",
          printable(positions));
  return read_folder(config, keys);
}

nlohmann::json to_json(const ModelShape& s) { return write_folder("esm", kClass, s, keys); }

void check_training(const FolderConfig& config, const ModelShape&) {
  for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"})
    config.must_be_to_train(key, 0.0, 0.1);
}

/// Adds layers of one block, by their names here and in the folder.
void add_layers(std::vector<nn::ExternalName>& names, const std::string& ours, const std::string& theirs,
                const std::vector<std::pair<const char*, const char*>>& layers) {
  for (const auto& [mine, yours] : layers) names.push_back({ours + mine, {theirs + yours}});
}

/// Returns the names of the layers outside the numbered blocks. `start` and `end`: prefixes of the blocks before and
/// after the trunk.
std::vector<nn::ExternalName> single_layers(const ModelShape& s, const std::string& start, const std::string& end) {
  const auto own = s.own.as<EsmfoldSizes>();
  std::vector<nn::ExternalName> names{
      {"language.shares", {"esm_s_combine"}},
      {"embedding", {"esm.embeddings.word_embeddings"}},
      {concat("blocks.", own.language_layers - 1, ".norm_after"), {"esm.encoder.emb_layer_norm_after"}}};
  add_layers(names, "head.", "",
             {{"contacts", "esm.contact_head.regression"},
              {"distogram", "distogram_head"},
              {"errors", "ptm_head"},
              {"letters", "lm_head"},
              {"lddt.norm", "lddt_head.0"},
              {"lddt.0", "lddt_head.1"},
              {"lddt.1", "lddt_head.2"},
              {"lddt.2", "lddt_head.3"}});
  add_layers(names, start, "",
             {{"language.norm", "esm_s_mlp.0"},
              {"language.up", "esm_s_mlp.1"},
              {"language.down", "esm_s_mlp.3"},
              {"types", "embedding"},
              {"positions", "trunk.pairwise_positional_embedding.embedding"},
              {"recycled.single_norm", "trunk.recycle_s_norm"},
              {"recycled.pair_norm", "trunk.recycle_z_norm"},
              {"recycled.distances", "trunk.recycle_disto"}});
  add_layers(names, end, "trunk.", {{"single", "trunk2sm_s"}, {"pair", "trunk2sm_z"}});
  add_layers(names, end + "structure.", "trunk.structure_module.",
             {{"norm_s", "layer_norm_s"},
              {"norm_z", "layer_norm_z"},
              {"in", "linear_in"},
              {"points.head_weights", "ipa.head_weights"},
              {"points.q", "ipa.linear_q"},
              {"points.kv", "ipa.linear_kv"},
              {"points.q_points", "ipa.linear_q_points"},
              {"points.kv_points", "ipa.linear_kv_points"},
              {"points.bias", "ipa.linear_b"},
              {"points.out", "ipa.linear_out"},
              {"norm_points", "layer_norm_ipa"},
              {"norm_transition", "transition.layer_norm"},
              {"update", "bb_update.linear"},
              {"angles.in", "angle_resnet.linear_in"},
              {"angles.initial", "angle_resnet.linear_initial"},
              {"angles.out", "angle_resnet.linear_out"}});
  const std::string structure = end + "structure.", module = "trunk.structure_module.";
  for (int64_t i = 0; i < own.transitions; ++i)
    for (int64_t layer = 0; layer < 3; ++layer)
      names.push_back({concat(structure, "transition.", i, ".", layer),
                       {concat(module, "transition.layers.", i, ".linear_", layer + 1)}});
  for (int64_t i = 0; i < own.angle_blocks; ++i) {
    names.push_back(
        {concat(structure, "angles.blocks.", i, ".up"), {concat(module, "angle_resnet.layers.", i, ".linear_1")}});
    names.push_back(
        {concat(structure, "angles.blocks.", i, ".down"), {concat(module, "angle_resnet.layers.", i, ".linear_2")}});
  }
  return names;
}

/// Returns the layers of the numbered blocks, of ESM-2 and of the trunk.
std::vector<nn::ExternalName> block_layers(int64_t hidden) {
  const auto rows = [&](const char* layer) { return nn::ExternalRows(concat("attention.self.", layer), 0, hidden); };
  std::vector<nn::ExternalName> names{{"norm_1", {"attention.LayerNorm"}},
                                      {"attention.qkv", {rows("query"), rows("key"), rows("value")}},
                                      {"attention.out", {"attention.output.dense"}},
                                      {"norm_2", {"LayerNorm"}},
                                      {"mlp.up", {"intermediate.dense"}},
                                      {"mlp.down", {"output.dense"}}};
  const auto same = [&](const std::string& prefix, const std::vector<const char*>& layers) {
    for (const char* layer : layers) names.push_back({prefix + layer, {prefix + layer}});
  };
  same("", {"layernorm_1"});
  same("sequence_to_pair.", {"layernorm", "proj", "o_proj"});
  same("pair_to_sequence.", {"layernorm", "linear"});
  same("seq_attention.", {"proj", "o_proj", "g_proj"});
  for (const char* triangle : {"tri_mul_out.", "tri_mul_in."})
    same(triangle, {"linear_a_p", "linear_a_g", "linear_b_p", "linear_b_g", "linear_g", "linear_z", "layer_norm_in",
                    "layer_norm_out"});
  for (const char* triangle : {"tri_att_start.", "tri_att_end."})
    same(triangle,
         {"layer_norm", "linear", "mha.linear_q", "mha.linear_k", "mha.linear_v", "mha.linear_o", "mha.linear_g"});
  for (const char* mlp : {"mlp_seq.", "mlp_pair."})
    add_layers(names, mlp, concat(mlp, "mlp."), {{"layer_norm", "0"}, {"linear_1", "1"}, {"linear_2", "3"}});
  return names;
}

std::vector<nn::ExternalName> external_names(const ModelShape& s) {
  const auto own = s.own.as<EsmfoldSizes>();
  const int64_t start = own.language_layers, end = start + 1 + s.layers;
  FolderNames names{.outside = single_layers(s, concat("blocks.", start, "."), concat("blocks.", end, ".")),
                    .in_block = block_layers(s.hidden)};
  for (int64_t i = 0; i <= end; ++i)
    names.each_block.push_back(i < start ? concat("esm.encoder.layer.", i, ".")
                                         : concat("trunk.blocks.", i - start - 1, "."));
  return names_in_folder(s, names);
}

}  // namespace esmfold

HuggingFace esmfold_folder() {
  return {.model_type = "esm",
          .names = esmfold::external_names,
          .from_json = esmfold::from_json,
          .to_json = esmfold::to_json,
          .check_training = esmfold::check_training,
          .ignored = {rotary_table("esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq"),
                      {"esm.embeddings.position_ids", "positions are rotary, without a table"},
                      {"af2_to_esm", "the ids of types follow from vocab_list of config.json"}},
          .may_lack = {"head.contacts.*", "head.letters.*"},
          .old_endings = {{".LayerNorm.weight", ".LayerNorm.gamma"}, {".LayerNorm.bias", ".LayerNorm.beta"}},
          .own_training = {"structure_dropout", "passes"},
          .matches = esmfold::matches};
}

}  // namespace colossal::models
