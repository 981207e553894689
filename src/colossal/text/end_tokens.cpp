#include "colossal/text/end_tokens.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/gguf_file.h"
#include "colossal/base/json_file.h"

namespace colossal::text {
namespace {

using nlohmann::json;

constexpr int64_t kMostBytes = 16 << 20;  // of config.json and its like
constexpr const char* kEndKey = "eos_token_id";

/// What the file says, perhaps nothing.
std::set<int64_t> ids_of_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const json config = read_json_object(path, "end tokens", {.bytes = kMostBytes});
  if (!config.contains(kEndKey) || config[kEndKey].is_null()) return {};
  const json& value = config[kEndKey];
  std::set<int64_t> ids;
  for (const json& id : value.is_array() ? value : json::array({value})) {
    require(id.is_number_integer(), "end tokens", kEndKey, " of ", path, " must be a token id or a list of them: got ",
            value.dump().substr(0, 80));
    ids.insert(id.get<int64_t>());
  }
  return ids;
}

std::set<int64_t> ids_of_model(const std::string& model) {
  if (model.empty()) return {};
  if (is_gguf(model)) {
    const GgufFile file(model);
    std::set<int64_t> ids;
    for (const char* key : {"eos", "eot", "eom"})
      ids.insert(file.integer("tokenizer.ggml." + std::string(key) + "_token_id", -1));
    return ids;
  }
  // what a model writes at its end is said where it is told how to write; config.json is older, and may not know turns
  const std::set<int64_t> ids = ids_of_file(model + "/generation_config.json");
  return ids.empty() ? ids_of_file(model + "/config.json") : ids;
}

}  // namespace

std::vector<int64_t> end_ids(const std::string& model, const Tokenizer& tokenizer) {
  std::set<int64_t> ids = ids_of_model(model);
  ids.insert(tokenizer.end_id());
  ids.erase(ids.begin(), ids.lower_bound(0));  // -1: there is none
  return {ids.begin(), ids.end()};
}

}  // namespace colossal::text
