#include "colossal/text/end_tokens.h"

#include <filesystem>
#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/formats/gguf_file.h"

namespace colossal::text {
namespace {

using nlohmann::json;

constexpr int64_t kMaxConfigBytes = 16 << 20;  // maximum size of config.json and similar files, in bytes
constexpr const char* kEndKey = "eos_token_id";

/// Returns the ids that the file defines; empty if it defines none.
std::set<int64_t> ids_of_file(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  const json config = read_json_object(path, "end tokens", {.bytes = kMaxConfigBytes});
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
  if (formats::is_gguf(model)) {
    const formats::GgufFile file(model);
    std::set<int64_t> ids;
    for (const char* key : {"eos", "eot", "eom"})
      ids.insert(file.integer("tokenizer.ggml." + std::string(key) + "_token_id", -1));
    return ids;
  }
  // generation_config.json is preferred, because it describes generation; config.json is older and may lack the end of
  // a chat turn.
  const std::set<int64_t> ids = ids_of_file(model + "/generation_config.json");
  return ids.empty() ? ids_of_file(model + "/config.json") : ids;
}

/// Returns the ids without -1, the id of an absent token.
std::vector<int64_t> present(std::set<int64_t> ids) {
  ids.erase(ids.begin(), ids.lower_bound(0));
  return {ids.begin(), ids.end()};
}

}  // namespace

std::vector<int64_t> end_ids(const std::string& model, const Tokenizer& tokenizer) {
  std::set<int64_t> ids = ids_of_model(model);
  ids.insert(tokenizer.end_id());
  return present(ids);
}

std::vector<int64_t> end_ids(const std::string& model) { return present(ids_of_model(model)); }

}  // namespace colossal::text
