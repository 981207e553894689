#include "colossal/infer/embeddings/sentence_folder.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::infer {
namespace {

using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{1} << 24;

/// Returns the value at `key` as the type of `fallback`, or `fallback` if the key is missing or null.
template <class T>
T value_at(const json& object, const char* key, const T& fallback, const std::string& file) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return fallback;
  try {
    return found->get<T>();
  } catch (const json::exception&) {
    throw Error("embed", concat(file, ": ", key, " has a value of another type: got ", printable(found->dump())));
  }
}

struct Module {
  std::string type;  ///< class name without its module path
  std::string folder;
};

std::vector<Module> modules_of(const std::string& folder) {
  const std::string file = folder + "/modules.json";
  // The file is a list, but the reader of untrusted JSON requires an object.
  const json all =
      parse_json_object("{\"modules\":" + read_file(file, kMaxFileBytes) + "\n}", file, "embed").at("modules");
  require(all.is_array(), "embed", file, " must be a list of modules");
  std::vector<Module> modules;
  for (const json& module : all) {
    require(module.is_object(), "embed", file, " must be a list of objects with `type` and `path`");
    const std::string type = value_at(module, "type", std::string(), file);
    const std::filesystem::path path = value_at(module, "path", std::string(), file);
    bool is_inside = path.is_relative();
    for (const auto& part : path) is_inside &= part != "..";
    require(is_inside, "embed", file, ": a module's path must lie in the folder: got ", printable(path.string()));
    modules.push_back({type.substr(type.rfind('.') + 1), path.empty() ? folder : folder + "/" + path.string()});
  }
  return modules;
}

Pooling read_pooling(const std::string& folder) {
  const std::string file = folder + "/config.json";
  const json config = read_json_object(file, "embed");
  static const std::vector<std::pair<std::string, Pooling>> known{{"cls_token", Pooling::Cls},
                                                                  {"mean_tokens", Pooling::Mean},
                                                                  {"max_tokens", Pooling::Max},
                                                                  {"lasttoken", Pooling::Last}};
  std::vector<Pooling> chosen;
  std::string all;
  if (const auto named = config.find("pooling_mode"); named != config.end()) {  // newer sentence-transformers
    all = named->is_string() ? named->get<std::string>() : named->dump();
    for (const char* name : {"cls", "mean", "max"})
      if (all == name) chosen.push_back(pooling_of(name));
    if (all == "lasttoken") chosen.push_back(Pooling::Last);
  }
  for (const auto& [key, value] : config.items()) {
    constexpr std::string_view kMode = "pooling_mode_";
    if (!key.starts_with(kMode) || !value_at(config, key.c_str(), false, file)) continue;
    all += (all.empty() ? "" : ", ") + key;
    bool is_known = false;
    for (const auto& [name, pooling] : known)
      if (key.substr(kMode.size()) == name) chosen.push_back(pooling), is_known = true;
    if (!is_known) chosen.clear();
    if (!is_known) break;
  }
  require(chosen.size() == 1, "embed", file, " must choose one pooling of cls, mean, max and lasttoken: got ",
          all.empty() ? "none" : printable(all), "; choose another with --pooling and the folder of the model alone");
  return chosen.front();
}

void read_transformer(const std::string& folder, SentenceFolder& to) {
  to.model = folder;
  const std::string file = folder + "/sentence_bert_config.json";
  if (!std::filesystem::exists(file)) return;
  const json config = read_json_object(file, "embed");
  require(!value_at(config, "do_lower_case", false, file), "embed", file,
          ": do_lower_case is not supported; convert the texts to lower case, and set it to false");
  if (const auto tokens = value_at(config, "max_seq_length", int64_t{0}, file); tokens != 0) {
    require(tokens > 0, "embed", file, ": max_seq_length must be positive: got ", tokens);
    to.tokens = tokens;
  }
}

void read_prompts(const std::string& folder, SentenceFolder& to) {
  const std::string file = folder + "/config_sentence_transformers.json";
  if (!std::filesystem::exists(file)) return;
  const json config = read_json_object(file, "embed");
  to.prompts = value_at(config, "prompts", to.prompts, file);
  to.prompt_name = value_at(config, "default_prompt_name", std::string(), file);
  require(to.prompt_name.empty() || to.prompts.contains(to.prompt_name), "embed", file,
          ": default_prompt_name must be one of prompts: got ", printable(to.prompt_name));
}

}  // namespace

SentenceFolder read_sentence_folder(const std::string& folder) {
  SentenceFolder to{.model = folder};
  const std::string file = folder + "/modules.json";
  if (!std::filesystem::exists(file)) return to;
  read_prompts(folder, to);
  const std::vector<Module> modules = modules_of(folder);
  static const std::vector<std::string> order{"Transformer", "Pooling", "Normalize"};
  require(modules.size() >= 2 && modules.size() <= order.size(), "embed", file,
          " must name a Transformer, a Pooling and perhaps a Normalize: got ", modules.size(), " modules");
  for (size_t i = 0; i < modules.size(); ++i)
    require(modules[i].type == order[i], "embed", file,
            " must name a Transformer, a Pooling and perhaps a Normalize: ", "got ", printable(modules[i].type),
            " in place ", i);
  read_transformer(modules[0].folder, to);
  to.pooling = read_pooling(modules[1].folder);
  to.normalize = modules.size() == 3;
  if (!to.prompts.empty()) {
    const std::string pooling = modules[1].folder + "/config.json";
    require(value_at(read_json_object(pooling, "embed"), "include_prompt", true, pooling), "embed", pooling,
            ": include_prompt = false (pooling without the prompt's tokens) is not supported");
  }
  return to;
}

}  // namespace colossal::infer
