#include "colossal/checkpoint/gguf/latent.h"

#include <ATen/ATen.h>

#include <string>
#include <string_view>

#include "colossal/base/error.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kSoftmax = 1, kSigmoid = 2;  // values of expert_gating_func

std::string latent_key(const char* name) { return concat("deepseek2.", name); }

GgufHeads heads_from(int64_t heads, int64_t key, int64_t value, int64_t rotated) {
  require(heads > 0 && rotated > 0 && key > rotated && value > 0, "gguf", "deepseek2 needs heads, rotated features, ",
          "more features of keys than rotated ones, and features of values: got ", heads, ", ", rotated, ", ", key,
          " and ", value);
  return {.heads = heads, .kv_heads = heads, .nope = key - rotated, .rotated = rotated, .value = value};
}

/// Returns kv_b_proj as [heads, nope + value, rank].
at::Tensor by_head(const at::Tensor& kv_b, const GgufHeads& heads) {
  const int64_t rows = heads.heads * (heads.nope + heads.value);
  require(kv_b.dim() == 2 && kv_b.size(0) == rows, "gguf", "kv_b_proj must have ", rows, " rows, ", heads.nope,
          " of keys and ", heads.value, " of values for each of ", heads.heads, " heads: got ", kv_b.size(0));
  return kv_b.view({heads.heads, heads.nope + heads.value, kv_b.size(1)});
}

}  // namespace

bool has_latent(const GgufFamily& family) { return std::string_view(family.architecture) == "deepseek2"; }

GgufHeads latent_heads(const formats::GgufFile& file) {
  const auto length = [&](const char* ours, const char* older) {
    const std::string name = latent_key(ours);
    return file.has(name) ? file.integer(name) : file.integer(latent_key(older));
  };
  return heads_from(
      file.integer(latent_key("attention.head_count")), length("attention.key_length_mla", "attention.key_length"),
      length("attention.value_length_mla", "attention.value_length"), file.integer(latent_key("rope.dimension_count")));
}

GgufHeads latent_heads(const formats::GgufValues& values) {
  const auto at = [&](const char* name) { return values.at(latent_key(name)).integers.front(); };
  return heads_from(at("attention.head_count"), at("attention.key_length_mla"), at("attention.value_length_mla"),
                    at("rope.dimension_count"));
}

at::Tensor latent_keys(const at::Tensor& kv_b, const GgufHeads& heads) {
  return by_head(kv_b, heads).narrow(1, 0, heads.nope).transpose(1, 2);
}

at::Tensor latent_values(const at::Tensor& kv_b, const GgufHeads& heads) {
  return by_head(kv_b, heads).narrow(1, heads.nope, heads.value);
}

at::Tensor latent_joined(const at::Tensor& keys, const at::Tensor& values, const GgufHeads& heads) {
  require(keys.dim() == 3 && keys.size(0) == heads.heads && keys.size(2) == heads.nope, "gguf",
          "attn_k_b must be [heads, rank, features], with ", heads.heads, " heads of ", heads.nope, " features");
  require(values.dim() == 3 && values.size(0) == heads.heads && values.size(1) == heads.value &&
              values.size(2) == keys.size(1),
          "gguf", "attn_v_b must be [heads, features, rank], with ", heads.heads, " heads of ", heads.value,
          " features and the rank of attn_k_b, ", keys.size(1));
  return at::cat({keys.transpose(1, 2), values}, 1).reshape({-1, keys.size(1)});
}

void read_latent(const formats::GgufFile& file, json& config) {
  const int64_t gate = file.integer(latent_key("expert_gating_func"), kSoftmax);
  require(gate == kSoftmax || gate == kSigmoid, "gguf", file.path(), ": deepseek2.expert_gating_func must be 1 ",
          "(softmax) or 2 (sigmoid): got ", gate);
  const bool is_v3 = gate == kSigmoid;
  const GgufHeads heads = latent_heads(file);
  const int64_t groups = file.integer(latent_key("expert_group_count"), 1);
  config.update({{"model_type", is_v3 ? "deepseek_v3" : "deepseek_v2"},
                 {"num_key_value_heads", heads.heads},
                 {"head_dim", heads.rotated},
                 {"qk_nope_head_dim", heads.nope},
                 {"qk_rope_head_dim", heads.rotated},
                 {"v_head_dim", heads.value},
                 {"scoring_func", is_v3 ? "sigmoid" : "softmax"},
                 {"topk_method", is_v3        ? "noaux_tc"
                                 : groups > 1 ? "group_limited_greedy"
                                              : "greedy"},
                 {"n_group", groups},
                 {"topk_group", groups > 1 ? file.integer(latent_key("expert_group_used_count")) : 1},
                 {"num_nextn_predict_layers", 0}});
  // llama.cpp takes an absent key for these values; transformers' classes have others.
  if (!config.contains("routed_scaling_factor")) config["routed_scaling_factor"] = 1.0;
  if (!config.contains("norm_topk_prob")) config["norm_topk_prob"] = false;
  if (config.value("q_lora_rank", int64_t{0}) == 0) config["q_lora_rank"] = nullptr;
}

void write_latent(const json& config, formats::GgufValues& values) {
  const auto size = [&](const char* name) { return config.at(name).get<int64_t>(); };
  const auto set = [&](const char* name, int64_t value) {
    values[latent_key(name)] = formats::GgufValue::integer(value);
  };
  const bool is_v3 = config.at("scoring_func") == "sigmoid";
  const int64_t rank = size("kv_lora_rank"), rotated = size("qk_rope_head_dim");
  set("attention.head_count_kv", 1);  // all heads read one latent
  set("attention.key_length", rank + rotated);
  set("attention.value_length", rank);
  set("attention.key_length_mla", size("qk_nope_head_dim") + rotated);
  set("attention.value_length_mla", size("v_head_dim"));
  set("expert_gating_func", is_v3 ? kSigmoid : kSoftmax);
  // llama.cpp needs the key unless the number of layers is that of a known model without a latent of queries.
  if (config.at("q_lora_rank").is_null()) set("attention.q_lora_rank", 0);
  const int64_t groups = size("n_group"), used = size("topk_group");
  if (groups == used) return;  // all groups are used, which is a choice without groups
  require(is_v3, "gguf", "a GGUF file of a deepseek_v2 can store only n_group = 1: got ", groups,
          ", because llama.cpp scores a group by two of its experts; keep the model as a folder");
  require(size("n_routed_experts") >= 2 * groups, "gguf", "a GGUF file of a deepseek_v3 needs at least 2 experts in ",
          "each group: got ", size("n_routed_experts"), " experts in ", groups, " groups; keep the model as a folder");
  set("expert_group_count", groups);
  set("expert_group_used_count", used);
}

}  // namespace colossal::checkpoint
