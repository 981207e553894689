#include <algorithm>
#include <filesystem>
#include <utility>

#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"

namespace colossal::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kFile[] = "chat_template.jinja", kOldFile[] = "chat_template.json", kConfig[] = "tokenizer_config.json",
               kTokensFile[] = "special_tokens_map.json", kFurther[] = "additional_chat_templates";
constexpr const char* kSpecialTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};

json read_if_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? read_json_object(path, "chat template") : json::object();
}

/// Returns the tokenizer_config.json of a folder, or the one that describes a GGUF file; {} if there is none.
json config_of(const std::string& folder) {
  if (formats::is_gguf(folder)) return tokenizer_of_gguf(formats::GgufFile(folder)).config;
  return read_if_there(folder + "/" + kConfig);
}

/// Adds the special tokens that `members` defines to `tokens`.
void take_tokens(const json& members, ordered_json& tokens) {
  for (const char* name : kSpecialTokens) {
    const auto found = members.find(name);
    if (found == members.end() || found->is_null()) continue;
    const json& token = found->is_object() && found->contains("content") ? (*found)["content"] : *found;
    require(token.is_string(), "chat template", name, " must be a string or have a string in \"content\"");
    tokens[name] = token.get<std::string>();
  }
}

/// Returns the special tokens of a folder or GGUF file, of which `config` is the tokenizer_config.json.
ordered_json special_tokens(const std::string& folder, const json& config) {
  ordered_json tokens = ordered_json::object();
  take_tokens(config, tokens);
  if (!config.contains("added_tokens_decoder")) take_tokens(read_if_there(folder + "/" + kTokensFile), tokens);
  return tokens;
}

struct Source {
  std::string name, shown_name, text;
};

std::vector<Source> sources_of_config(const json& config, const std::string& path) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return {};
  if (found->is_string()) return {{"default", path, found->get<std::string>()}};
  require(found->is_array(), "chat template", path, ": chat_template must be a string or a list of named templates");
  const auto text_in = [](const json& one, const char* member) {
    const auto text = one.find(member);
    return text == one.end() ? nullptr : text->get_ptr<const std::string*>();
  };
  std::vector<Source> sources;
  for (const json& one : *found) {
    const std::string *name = text_in(one, "name"), *text = text_in(one, "template");
    require(name && text, "chat template", path,
            ": each element of the list chat_template must have the strings \"name\" and \"template\"");
    sources.push_back({*name, path + " (" + *name + ")", *text});
  }
  return sources;
}

std::vector<Source> sources_of_files(const std::string& folder, int64_t max) {
  std::vector<Source> sources;
  const auto read = [&](const std::string& name, const std::string& path) {
    sources.push_back({name, path, read_file(path, max)});
  };
  std::error_code ignored;
  if (fs::exists(folder + "/" + kFile, ignored)) read("default", folder + "/" + kFile);
  if (!fs::is_directory(folder + "/" + kFurther, ignored)) return sources;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder + "/" + kFurther))
    if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths) read(path.stem().string(), path.string());
  return sources;
}

}  // namespace

ChatTemplate ChatTemplate::read(const std::string& folder, const TemplateLimits& limits) {
  const std::string config_path = formats::is_gguf(folder) ? folder : folder + "/" + kConfig;
  const json config = config_of(folder);
  std::vector<Source> sources = sources_of_files(folder, limits.template_bytes);
  if (sources.empty()) sources = sources_of_config(config, config_path);
  if (sources.empty()) sources = sources_of_config(read_if_there(folder + "/" + kOldFile), folder + "/" + kOldFile);
  require(!sources.empty(), "chat template", folder, " has no chat template: give a folder with ", kFile,
          ", or with chat_template in ", kConfig, " or ", kOldFile);
  ChatTemplate made;
  made.limits_ = limits;
  made.where_ = folder;
  made.variables_ = special_tokens(folder, config);
  for (const Source& source : sources) made.add(source.name, source.shown_name, source.text);
  return made;
}

std::optional<ChatTemplate> ChatTemplate::find(const std::string& file, const std::vector<std::string>& folders,
                                               const TemplateLimits& limits) {
  std::vector<std::string> own;
  for (const std::string& name : folders)
    if (std::string folder = folder_of_tokenizer(name); !folder.empty()) own.push_back(std::move(folder));
  auto from = own.begin();
  if (file.empty()) from = std::find_if(own.begin(), own.end(), has_chat_template);
  if (file.empty() && from == own.end()) return std::nullopt;
  ChatTemplate found = file.empty()
                           ? read(*from, limits)
                           : ChatTemplate(read_file(file, limits.template_bytes), file, ordered_json::object(), limits);
  for (; found.variables_.empty() && from != own.end(); ++from)
    found.variables_ = special_tokens(*from, config_of(*from));
  return found;
}

bool has_chat_template(const std::string& folder) {
  if (formats::is_gguf(folder)) return formats::GgufFile(folder).has("tokenizer.chat_template");
  std::error_code ignored;
  if (fs::exists(folder + "/" + kFile, ignored) || fs::exists(folder + "/" + kOldFile, ignored)) return true;
  if (fs::is_directory(folder + "/" + kFurther, ignored)) return true;
  const json config = read_if_there(folder + "/" + kConfig);
  return config.contains("chat_template") && !config["chat_template"].is_null();
}

}  // namespace colossal::text
