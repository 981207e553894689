#include "colossal/serve/request_defaults.h"

#include <algorithm>
#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::serve {
namespace {

constexpr const char* kFolderFile = "generation_config";

void read_option(const nlohmann::json& config, const char* key, std::optional<double>& to) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return;
  require(found->is_number(), kFolderFile, key, " must be a number: got ", printable(found->dump()));
  to = found->get<double>();
}

void read_option(const nlohmann::json& config, const char* key, std::optional<int64_t>& to) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return;
  require(found->is_number_integer(), kFolderFile, key, " must be a whole number: got ", printable(found->dump()));
  to = found->get<int64_t>();
}

/// Sets the options that the folder has and the command line did not give.
void use_folder(const FolderOptions& folder, const std::vector<std::string>& given, RequestDefaults& defaults) {
  const auto use = [&given](const char* name, const auto& from, auto& to) {
    if (from && std::find(given.begin(), given.end(), name) == given.end()) to = *from;
  };
  infer::SamplingOptions& sampling = defaults.options.sampling;
  use("temperature", folder.temperature, sampling.temperature);
  use("top_p", folder.top_p, sampling.top_p);
  use("min_p", folder.min_p, sampling.min_p);
  use("repetition_penalty", folder.repetition_penalty, sampling.repetition_penalty);
  use("top_k", folder.top_k, sampling.top_k);
  use("max_tokens", folder.max_new_tokens, defaults.max_tokens);
}

}  // namespace

FolderOptions read_folder_options(const std::string& model) {
  const std::string path = model + "/generation_config.json";
  FolderOptions options;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return options;
  const nlohmann::json config = read_json_object(path, kFolderFile);
  try {
    read_option(config, "temperature", options.temperature);
    read_option(config, "top_p", options.top_p);
    read_option(config, "min_p", options.min_p);
    read_option(config, "repetition_penalty", options.repetition_penalty);
    read_option(config, "top_k", options.top_k);
    read_option(config, "max_new_tokens", options.max_new_tokens);
    require(options.max_new_tokens.value_or(1) > 0, kFolderFile, "max_new_tokens must be positive: got ",
            options.max_new_tokens.value_or(1));
    RequestDefaults checked;
    use_folder(options, {}, checked);
    checked.options.sampling.check();
  } catch (const Error& error) {
    throw Error(kFolderFile, concat(path, ": ", error.message()));
  }
  return options;
}

RequestDefaults request_defaults(const infer::GenerationOptions& command_line, const std::vector<std::string>& given,
                                 const FolderOptions& folder) {
  const auto is_given = [&given](const char* name) {
    return std::find(given.begin(), given.end(), name) != given.end();
  };
  RequestDefaults defaults{.options = command_line, .has_seed = is_given("seed")};
  if (!is_given("temperature")) defaults.options.sampling.temperature = 1;  // OpenAI's default
  if (is_given("max_tokens")) defaults.max_tokens = command_line.max_tokens;
  use_folder(folder, given, defaults);
  return defaults;
}

}  // namespace colossal::serve
