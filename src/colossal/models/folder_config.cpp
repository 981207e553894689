#include "colossal/models/folder_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/models/class_names.h"

namespace colossal::models {
namespace {

constexpr char kScores[] = "ForSequenceClassification";

/// Returns the class of transformers with a head of scores beside `architecture`, a class that continues text.
std::string scoring_class(std::string architecture) {
  for (const std::string ending : {"ForCausalLM", "LMHeadModel"})
    if (architecture.ends_with(ending)) architecture.resize(architecture.size() - ending.size());
  return architecture + kScores;
}

std::string as_text(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

}  // namespace

FolderConfig::FolderConfig(const nlohmann::json& config, std::string family)
    : config_(config), family_(std::move(family)) {
  for (const char* key : {"quantization_config", "pruned_heads", "per_layer_config"})
    must_be(key, nlohmann::json::object());
  must_be("add_cross_attention", false);
}

FolderConfig FolderConfig::object(const char* key) const {
  nlohmann::json inner = has(key) ? config_[key] : nlohmann::json::object();
  require(inner.is_object(), "model", prefix_, key, " of ", with_article(family_), " must be an object: got ",
          printable(inner.dump()));
  return FolderConfig(std::move(inner), family_, concat(prefix_, key, "."));
}

void FolderConfig::must_be_one_of(const char* key, const std::vector<nlohmann::json>& allowed) const {
  if (!has(key) || std::find(allowed.begin(), allowed.end(), config_[key]) != allowed.end()) return;
  refuse(key, config_[key], (allowed.size() > 1 ? "one of " : "") + join(allowed, ", ", as_text));
}

void FolderConfig::must_be_to_train(const char* key, const nlohmann::json& allowed,
                                    const nlohmann::json& otherwise) const {
  const nlohmann::json value = has(key) ? config_[key] : otherwise;
  if (value.is_null() || value == allowed) return;
  refuse(key, value, as_text(allowed) + " to train it",
         "; training here does not follow this key: set it to that value in config.json to train without");
}

int64_t FolderConfig::integer(const char* key, const nlohmann::json& value) const {
  if (value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<int64_t>::max())
    return value.get<int64_t>();
  if (value.is_number_integer() && !value.is_number_unsigned()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) < 0x1p53) return static_cast<int64_t>(number);
  }
  refuse(key, value, "an integer");
}

void FolderConfig::refuse(const char* key, const nlohmann::json& value, const std::string& wanted,
                          const char* remedy) const {
  throw Error("model", concat(prefix_, key, " of ", with_article(family_), " must be ", wanted, ": got ",
                              printable(as_text(value)), remedy));
}

void check_sizes_read(const FolderKeys& keys, const std::vector<std::pair<const char*, int64_t>>& sizes) {
  constexpr int64_t kMost = 1 << 20;
  if (!keys.reads()) return;
  for (const auto& [key, size] : sizes)
    require(size > 0 && size <= kMost, "model", key, " of ", with_article(keys.family()), " must be from 1 to ", kMost,
            ": got ", size);
}

ModelShape read_folder(const FolderConfig& config, const std::function<void(FolderKeys&, ModelShape&)>& keys) {
  FolderKeys k(config);
  ModelShape shape;
  keys(k, shape);
  return shape;
}

nlohmann::json write_folder(const char* model_type, const char* architecture, ModelShape shape,
                            const std::function<void(FolderKeys&, ModelShape&)>& keys) {
  const std::string name = shape.outputs() > 0 ? scoring_class(architecture) : architecture;
  nlohmann::json config{{"model_type", model_type}, {"architectures", nlohmann::json::array({name})}};
  FolderKeys k(config);
  keys(k, shape);
  if (shape.outputs() > 0) write_classes({.count = shape.outputs()}, config);
  return config;
}

int64_t outputs_in(const nlohmann::json& config) {
  const auto found = config.find("architectures");
  if (found == config.end() || !found->is_array()) return 0;
  const bool scores = std::any_of(found->begin(), found->end(), [](const nlohmann::json& name) {
    return name.is_string() && name.get_ref<const std::string&>().ends_with(kScores);
  });
  return scores ? count_classes(config) : 0;
}

void refuse_attention_dropout(const FolderConfig& config, const ModelShape&) {
  config.must_be_to_train("attention_dropout", 0);
}

void write_tokens(nlohmann::json& config, int64_t vocabulary, int64_t largest) {
  if (vocabulary > largest) return;
  for (const char* key : {"pad_token_id", "bos_token_id", "eos_token_id"}) config[key] = nullptr;
}

}  // namespace colossal::models
