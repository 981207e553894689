#include "colossal/models/expert_folder.h"

#include <algorithm>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/folder_config.h"

namespace colossal::models {
namespace {

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

/// Returns the number of experts, which has a name in published folders and another in some that transformers 5 writes.
int64_t read_count(const FolderConfig& c, const char* name, const char* other, int64_t otherwise) {
  const auto count = c.value(name, c.value(other, otherwise));
  const auto again = c.value(other, count);
  require(count == again, "model", name, " and ", other, " of ", with_article(c.family()), " must be equal: got ",
          count, " and ", again, "; remove one of them");
  return count;
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

ExpertKeys read_mixtral_experts(const FolderConfig& c) {
  ExpertKeys keys;
  keys.count = read_count(c, "num_local_experts", "num_experts", 8);
  require(keys.count > 0, "model", "num_local_experts of a Mixtral must be above 0: got ", keys.count,
          "; a model without experts has model_type mistral");
  keys.used = c.value("num_experts_per_tok", int64_t{2});
  return keys;
}

ExpertKeys read_qwen_moe_experts(const FolderConfig& c, int64_t layers) {
  ExpertKeys keys;
  keys.count = read_count(c, "num_experts", "num_local_experts", 128);
  keys.used = c.value("num_experts_per_tok", int64_t{8});
  keys.ffn = c.value("moe_intermediate_size", int64_t{768});
  keys.normalize = c.value("norm_topk_prob", false);
  keys.every = c.value("decoder_sparse_step", int64_t{1});
  require(keys.every > 0, "model", "decoder_sparse_step of a Qwen3-MoE must be above 0: got ", keys.every);
  for (int64_t layer : c.value("mlp_only_layers", std::vector<int64_t>{}))
    if (layer >= 0 && layer < layers) keys.dense.push_back(layer);  // transformers ignores others
  std::sort(keys.dense.begin(), keys.dense.end());
  keys.dense.erase(std::unique(keys.dense.begin(), keys.dense.end()), keys.dense.end());
  for (int64_t layer = 0; layer < layers; ++layer)
    if (keys.is_mixture(layer)) return keys;
  return {};
}

void write_mixtral_experts(const ModelShape& s, const ExpertKeys& keys, nlohmann::json& config) {
  require_mixtral_form(keys);
  config["intermediate_size"] = keys.options(s).ffn;
  config["num_local_experts"] = keys.count;
  config["num_experts_per_tok"] = keys.used;
}

void write_qwen_moe_experts(const ModelShape& s, const ExpertKeys& keys, nlohmann::json& config) {
  require_qwen_moe_form(keys);
  nlohmann::json dense = nlohmann::json::array();
  for (int64_t layer = keys.every - 1; layer < s.layers; layer += keys.every)
    if (!keys.is_mixture(layer)) dense.push_back(layer);
  config.update({{"num_experts", keys.count},
                 {"num_experts_per_tok", keys.used},
                 {"moe_intermediate_size", keys.options(s).ffn},
                 {"norm_topk_prob", keys.normalize},
                 {"decoder_sparse_step", keys.every},
                 {"mlp_only_layers", dense}});
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
