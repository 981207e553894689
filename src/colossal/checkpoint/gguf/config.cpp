#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/checkpoint/gguf/family.h"
#include "colossal/checkpoint/gguf/latent.h"
#include "colossal/checkpoint/gguf/rotary.h"

namespace colossal::checkpoint {
namespace {

using nlohmann::json;
using Kind = GgufKey::Kind;

constexpr char kDivisor[] = "query_pre_attn_scalar", kSharedHeads[] = "num_kv_heads", kWindow[] = "sliding_window";

const formats::GgufTensor* find_tensor(const formats::GgufFile& file, const std::string& name) {
  for (const formats::GgufTensor& tensor : file.tensors())
    if (tensor.name == name) return &tensor;
  return nullptr;
}

/// Keys that any architecture may have. The values that they change are in the tensors, or in keys that are read.
const std::set<std::string>& common_keys() {
  static const std::set<std::string> keys{"vocab_size",
                                          "rope.dimension_count",
                                          "rope.scaling.type",
                                          "rope.scaling.factor",
                                          "rope.scaling.attn_factor",
                                          "rope.scaling.original_context_length",
                                          "rope.scaling.finetuned",
                                          "rope.scaling.yarn_beta_fast",
                                          "rope.scaling.yarn_beta_slow",
                                          "attention.value_length",
                                          "attention.causal",
                                          "expert_count",
                                          "expert_used_count"};
  return keys;
}

/// Refuses keys that are not understood, because ignoring one could give wrong results.
void refuse_unknown_keys(const formats::GgufFile& file, const GgufFamily& family) {
  const std::string prefix = concat(family.architecture, ".");
  std::set<std::string> known(family.implied.begin(), family.implied.end());
  for (const GgufKey& key : family.keys) known.insert(key.gguf);
  if (std::string(family.architecture) == "phi3") known.insert("attention.sliding_window");
  if (std::string(family.architecture) == "bloom") known.insert("attention.max_alibi_bias");
  for (const auto& [key, value] : file.values()) {
    if (key.rfind(prefix, 0) != 0) continue;
    const std::string own = key.substr(prefix.size());
    require(known.count(own) || common_keys().count(own), "gguf", file.path(), ": ", printable(key),
            " is not supported");
  }
  require(file.integer("split.count", 1) <= 1, "gguf", file.path(),
          ": is a part of a split file; join the parts with llama-gguf-split --merge");
  require(file.integer(prefix + "attention.causal", 1) == 1, "gguf", file.path(), ": ", prefix,
          "attention.causal must be true");
}

int64_t integer_in(const json& config, const char* key) { return config.at(key).get<int64_t>(); }

/// Returns query_pre_attn_scalar of a gemma2. Follows llama.cpp: the 27B model, which has 46 layers, divides by hidden
/// size / heads.
int64_t divisor_of_queries(const json& config) {
  const int64_t heads = integer_in(config, "num_attention_heads");
  const bool is_27b = integer_in(config, "num_hidden_layers") == 46 && heads > 0;
  return is_27b ? integer_in(config, "hidden_size") / heads : integer_in(config, "head_dim");
}

/// Sets values of `config` that follow from the presence of tensors, or that files of one family store in their own
/// way.
void read_particular(const formats::GgufFile& file, const GgufFamily& family, json& config) {
  const std::string name = family.architecture, prefix = name + ".";
  const auto has = [&](const char* tensor) { return find_tensor(file, tensor) != nullptr; };
  const bool is_dense_llama = name == "llama" && !family.has_experts;  // a Mixtral has no biases
  if (is_dense_llama || name.starts_with("qwen3")) config["attention_bias"] = has("blk.0.attn_q.bias");
  if (is_dense_llama) config["mlp_bias"] = has("blk.0.ffn_up.bias");
  if (has_latent(family)) read_latent(file, config);
  if (name == "phi3") {
    const int64_t window = file.integer(prefix + "attention.sliding_window", 0);
    config[kWindow] = window > 0 ? json(window) : json();
  }
  if (name == "gemma2") config[kDivisor] = divisor_of_queries(config);
  if (name == "falcon") {
    const int64_t heads = integer_in(config, "num_attention_heads"), shared = config.value(kSharedHeads, heads);
    const bool has_two = has("blk.0.attn_norm_2.weight"), is_new = has_two || (shared != 1 && shared != heads);
    config[kSharedHeads] = shared;
    config["new_decoder_architecture"] = is_new;
    config["multi_query"] = shared == 1;
    if (is_new) config["num_ln_in_parallel_attn"] = has_two ? 2 : 1;
  }
  if (name == "bloom" && file.has(prefix + "attention.max_alibi_bias"))
    require(file.real(prefix + "attention.max_alibi_bias") == 8, "gguf", file.path(), ": ", prefix,
            "attention.max_alibi_bias must be 8");
}

/// Does the reverse for a file that is written. Errors: values that a file cannot store.
void write_particular(const json& config, const GgufFamily& family, formats::GgufValues& values) {
  const std::string name = family.architecture, prefix = name + ".";
  if (has_latent(family)) write_latent(config, values);
  if (name == "phi3")
    values[prefix + "attention.sliding_window"] =
        formats::GgufValue::integer(config[kWindow].is_null() ? 0 : integer_in(config, kWindow));
  if (name == "falcon") values[prefix + "tensor_data_layout"] = formats::GgufValue::text("jploski");
  if (name == "bloom") {
    values[prefix + "feed_forward_length"] = formats::GgufValue::integer(4 * integer_in(config, "hidden_size"));
    values[prefix + "attention.head_count_kv"] = formats::GgufValue::integer(integer_in(config, "n_head"));
  }
  if (!has_latent(family) && config.contains("head_dim") && values.count(prefix + "attention.key_length"))
    values[prefix + "attention.value_length"] = values[prefix + "attention.key_length"];
  if (name != "gemma2") return;
  const int64_t divides = divisor_of_queries(config);
  require(config.at(kDivisor) == divides, "gguf", "a GGUF file of a gemma2 can store only ", kDivisor, " ", divides,
          ": got ", config.at(kDivisor).dump());
  const json types = config.value("layer_types", json::array());
  for (size_t i = 0; i < types.size(); ++i)
    require(
        types[i] == (i % 2 == 0 ? "sliding_attention" : "full_attention"), "gguf",
        "a GGUF file of a gemma2 can store only layer_types that alternate, from sliding_attention in layer 0: got " +
            types.dump());
}

json read_value(const formats::GgufFile& file, const std::string& name, Kind kind) {
  if (kind == Kind::Integer) return file.integer(name);
  if (kind == Kind::Flag) return file.integer(name) != 0;
  return shortest_double(static_cast<float>(file.real(name)));
}

formats::GgufValue written(const json& value, const GgufKey& key) {
  if (key.kind == Kind::Integer) return formats::GgufValue::integer(value.get<int64_t>());
  if (key.kind == Kind::Flag) return formats::GgufValue::flag(value.get<bool>());
  return formats::GgufValue::real(value.get<double>());
}

}  // namespace

json config_of_gguf(const formats::GgufFile& file) {
  const GgufFamily& family = family_of(file);
  refuse_unknown_keys(file, family);
  const std::string prefix = concat(family.architecture, ".");
  json config = family.fixed;
  config["model_type"] = family.model_type;
  for (const GgufKey& key : family.keys)
    if (const std::string name = prefix + key.gguf; !key.optional || file.has(name))
      config[key.config] = read_value(file, name, key.kind);
  const formats::GgufTensor* embedding = find_tensor(file, "token_embd.weight");
  require(embedding, "gguf", file.path(), ": must have token_embd.weight: got a vocabulary without a model");
  config["vocab_size"] = embedding->shape.front();
  config["tie_word_embeddings"] = find_tensor(file, "output.weight") == nullptr;
  read_particular(file, family, config);
  read_gguf_rotary(file, family, config);
  return config;
}

GgufModel gguf_of_config(const json& config) {
  const auto type = config.at("model_type").get<std::string>();
  const GgufFamily* family = family_of_model_type(type);
  require(family, "gguf", "models of type ", type, " cannot be written as GGUF");
  for (const auto& [key, value] : family->fixed.items())
    require(!config.contains(key) || config[key] == value, "gguf", "a GGUF file of a ", type, " can store only ", key,
            " = ", value.dump(), ": got ", config.value(key, json()).dump());
  const std::string prefix = concat(family->architecture, ".");
  GgufModel model;
  model.values["general.architecture"] = formats::GgufValue::text(family->architecture);
  for (const GgufKey& key : family->keys) {
    if (key.optional && (!config.contains(key.config) || config[key.config].is_null())) continue;
    model.values[prefix + key.gguf] = written(config.at(key.config), key);
  }
  model.values[prefix + "vocab_size"] = formats::GgufValue::integer(integer_in(config, "vocab_size"));
  write_particular(config, *family, model.values);
  write_gguf_rotary(config, *family, model);
  return model;
}

}  // namespace colossal::checkpoint
