#include "colossal/models/folder_config.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"

namespace colossal::models {
namespace {

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
  require(inner.is_object(), "model", prefix_, key, " of a ", family_, " must be an object: got ",
          printable(inner.dump()));
  return FolderConfig(std::move(inner), family_, concat(prefix_, key, "."));
}

void FolderConfig::must_be_one_of(const char* key, const std::vector<nlohmann::json>& allowed) const {
  if (!has(key) || std::find(allowed.begin(), allowed.end(), config_[key]) != allowed.end()) return;
  std::string all;
  for (const nlohmann::json& value : allowed) all += (all.empty() ? "" : ", ") + as_text(value);
  throw Error("model", concat(prefix_, key, " of a ", family_, " must be ", allowed.size() > 1 ? "one of " : "", all,
                              ": got ", printable(as_text(config_[key]))));
}

}  // namespace colossal::models
