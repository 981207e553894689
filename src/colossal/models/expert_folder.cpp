#include "colossal/models/expert_folder.h"

#include <algorithm>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/folder_config.h"

namespace colossal::models {
namespace {

constexpr const char *kExperts = "num_experts", *kLocalExperts = "num_local_experts",
                     *kUsedExperts = "num_experts_per_tok";

/// Returns the names of stacks whose matrices have these names in each expert.
std::vector<nn::ExternalName> expert_names(const std::string& layer, const char* gate, const char* up,
                                           const char* down) {
  const auto of = [&](const char* matrix) { return layer + ".experts.{}." + matrix + ".weight"; };
  return {{"mlp.router", {layer + ".gate"}},
          {.ours = "mlp.experts.gate_up.weight",
           .parts = {of(gate), of(up)},
           .stacked = true,
           .joint = "mlp.experts.gate_up_proj"},
          {.ours = "mlp.experts.down.weight", .parts = {of(down)}, .stacked = true, .joint = "mlp.experts.down_proj"}};
}

/// The row of the number of experts, which has a name in published folders and another in some that transformers 5
/// writes.
void count_key(FolderKeys& k, const char* name, const char* other, int64_t& count, int64_t otherwise) {
  if (k.reads()) k.optional(other, otherwise, otherwise);
  k.optional(name, count, otherwise);
  if (k.writes()) return;
  const auto again = k.config().value(other, count);
  require(count == again, "model", name, " and ", other, " of ", with_article(k.family()), " must be equal: got ",
          count, " and ", again, "; remove one of them");
}

template <class Value>
void require_key(bool holds, const char* key, const Value& wanted, const std::string& folder, const char* lacks,
                 const Value& got) {
  require(holds, "experts", key, " must be ", wanted, " to be written as ", with_article(folder), ", which has no ",
          lacks, ": got ", got, "; use the run folder or its checkpoints instead");
}

/// Checks the keys that neither format has.
void require_plain_router(const ExpertKeys& keys, const std::string& folder) {
  require_key<int64_t>(keys.shared == 0, "shared", 0, folder, "shared experts", keys.shared);
  require_key<std::string>(keys.score == "softmax", "score", "softmax", folder, "other scores", keys.score);
  require_key<double>(keys.scale == 1, "scale", 1, folder, "factor of the weights", keys.scale);
  require_key<int64_t>(keys.groups_used == keys.groups, "groups_used", keys.groups, folder, "groups of experts",
                       keys.groups_used);
  require_key<std::string>(!keys.bias, "bias", "false", folder, "balance biases", "true");
}

}  // namespace

std::vector<nn::ExternalName> mixtral_names() { return expert_names("block_sparse_moe", "w1", "w3", "w2"); }

std::vector<nn::ExternalName> qwen_moe_names() { return expert_names("mlp", "gate_proj", "up_proj", "down_proj"); }

void mixtral_expert_keys(FolderKeys& k, const ModelShape& s, ExpertKeys& keys) {
  if (k.writes()) require_mixtral_form(keys);
  k.written("intermediate_size", keys.options(s).ffn);
  count_key(k, kLocalExperts, kExperts, keys.count, 8);
  require(keys.count > 0, "model", kLocalExperts, " of a Mixtral must be above 0: got ", keys.count,
          "; a model without experts has model_type mistral");
  k.optional(kUsedExperts, keys.used, 2);
}

void qwen_moe_expert_keys(FolderKeys& k, const ModelShape& s, ExpertKeys& keys) {
  constexpr const char* kEvery = "decoder_sparse_step";
  if (k.writes()) require_qwen_moe_form(keys);
  if (k.writes()) keys.ffn = keys.options(s).ffn;
  count_key(k, kExperts, kLocalExperts, keys.count, 128);
  k.optional(kUsedExperts, keys.used, 8);
  k.optional("moe_intermediate_size", keys.ffn, 768);
  k.optional("norm_topk_prob", keys.normalize, false);
  k.optional(kEvery, keys.every, 1);
  require(keys.every > 0, "model", kEvery, " of a Qwen3-MoE must be above 0: got ", keys.every);
  std::vector<int64_t> dense;
  if (k.writes())
    for (int64_t layer = keys.every - 1; layer < s.layers; layer += keys.every)
      if (!keys.is_mixture(layer)) dense.push_back(layer);
  k.optional("mlp_only_layers", dense, {});
  if (k.writes()) return;
  std::erase_if(dense, [&](int64_t layer) { return layer < 0 || layer >= s.layers; });  // transformers ignores them
  std::sort(dense.begin(), dense.end());
  dense.erase(std::unique(dense.begin(), dense.end()), dense.end());
  keys.dense = dense;
  for (int64_t layer = 0; layer < s.layers; ++layer)
    if (keys.is_mixture(layer)) return;
  keys = {};
}

void require_mixtral_form(const ExpertKeys& keys) {
  const std::string folder = "mixtral";
  require_plain_router(keys, folder);
  require_key<std::string>(keys.normalize, "normalize", "true", folder, "other weights", "false");
  const char* dense = "dense blocks";
  require_key<int64_t>(keys.dense_first == 0, "dense_first", 0, folder, dense, keys.dense_first);
  require_key<int64_t>(keys.every == 1, "every", 1, folder, dense, keys.every);
  require_key<std::string>(keys.dense.empty(), "dense", "[]", folder, dense, nlohmann::json(keys.dense).dump());
}

void require_qwen_moe_form(const ExpertKeys& keys) { require_plain_router(keys, "qwen3_moe"); }

void require_dense_form(const ExpertKeys& keys, const std::string& model_type) {
  require_key<int64_t>(keys.count == 0, "count", 0, model_type, "experts", keys.count);
}

}  // namespace colossal::models
