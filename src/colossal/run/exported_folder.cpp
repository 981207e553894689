#include "colossal/run/exported_folder.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/text/end_tokens.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
#include "colossal/text/tokenizers/tokenizer_class.h"
#include "colossal/text/tokenizers/tokenizer_files.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kTokenizerConfig[] = "tokenizer_config.json", kTokenizer[] = "tokenizer.json",
               kTemplate[] = "chat_template.jinja", kOldTemplate[] = "chat_template.json",
               kTemplates[] = "additional_chat_templates";

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return !path.empty() && fs::is_directory(path, ignored);
}

/// Returns the folder of the tokenizer `source`, a folder or a file.
fs::path folder_of_tokenizer(const std::string& source) {
  return is_folder(source) ? fs::path(source) : fs::path(source).parent_path();
}

/// Returns true if the model's tokenizer is the one of its source folder.
bool has_tokenizer_of_source(const SavedModel& saved) {
  std::error_code ignored;
  return saved.tokenizer_source == saved.source ||
         (saved.tokenizer_source != "bytes" &&
          fs::equivalent(folder_of_tokenizer(saved.tokenizer_source), saved.source, ignored));
}

/// Returns `source`, a config.json, for a model whose family writes `ours`. Only keys change that the family would have
/// written with another value for `source`, so that the spelling of all others stays.
json with_changes(const json& source, const models::Registry& models, const json& ours) {
  const models::ModelShape shape = models.shape_of(source);
  const json before = shape.architecture->hugging_face.to_json(shape);
  const auto differs = [&](const std::string& key) {
    return before.contains(key) != ours.contains(key) || (ours.contains(key) && before[key] != ours[key]);
  };
  json config = source;
  for (const auto& [key, value] : before.items())
    if (!ours.contains(key)) config.erase(key);
  for (const auto& [key, value] : ours.items())
    if (differs(key)) config[key] = value;
  // rope_parameters of transformers 5 says the same as several keys of ours.
  if ((differs("rope_theta") || differs("rope_scaling")) && config.erase("rope_parameters") > 0)
    for (const auto& [key, value] : ours.items())
      if (!config.contains(key)) config[key] = value;
  // The folder may have been one of another class, e.g. without a head. Under another model_type classes differ anyway.
  if (config["model_type"] == ours["model_type"]) config["architectures"] = ours["architectures"];
  return config;
}

/// Sets the token ids of a model that writes text to those of its tokenizer.
void set_token_ids(const SavedModel& saved, json& config) {
  const models::ModelShape& shape = saved.model->model().shape;
  const std::string& source = saved.tokenizer_source;
  std::error_code ignored;
  const bool has_one =
      source == "bytes" || (formats::is_gguf(source) ? text::has_tokenizer(source) : fs::exists(source, ignored));
  if (!shape.task().generates() || !has_one) return;
  const auto tokenizer = text::make_tokenizer(source);
  std::vector<int64_t> ends = text::end_ids(formats::is_gguf(source) ? source : "", *tokenizer);
  std::erase_if(ends, [&](int64_t id) { return id >= shape.vocabulary; });
  config["eos_token_id"] = ends.size() > 1 ? json(ends) : ends.empty() ? json() : json(ends.front());
  if (shape.task().answers()) return;  // its decoder begins with decoder_start_token_id
  const int64_t begin = tokenizer->begin_id();
  config["bos_token_id"] = begin < 0 || begin >= shape.vocabulary ? json() : json(begin);
}

const char* name_of(at::ScalarType dtype) {
  if (dtype == at::kDouble) return "float64";
  if (dtype == at::kBFloat16) return "bfloat16";
  return dtype == at::kHalf ? "float16" : "float32";
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns true for files of tokenizers, chat templates and generation options, which belong to a vocabulary.
bool belongs_to_tokenizer(const std::string& name) {
  return is_one_of(
      name, {kTokenizer, kTokenizerConfig, "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
             "vocab.txt", "tokenizer.model", "spiece.model", kTemplate, kOldTemplate, kTemplates});
}

/// Returns true for a file that a folder with other weights can keep.
bool is_kept(const fs::path& path) {
  const std::string name = path.filename().string(), ending = path.extension().string();
  const bool describes_weights = name.ends_with(".index.json") ||
                                 is_one_of(name, {"config.json", "params.json", "adapter_config.json",
                                                  "quantize_config.json", "quant_config.json", "hf_quant_config.json"});
  const bool is_text = is_one_of(ending, {".json", ".jinja", ".txt", ".model", ".tiktoken", ".py", ".md"}) ||
                       name.starts_with("LICENSE") || name.starts_with("NOTICE");
  return is_text && !describes_weights && !name.starts_with(".");
}

void copy_into(const fs::path& file, const fs::path& folder) {
  const fs::path to = folder / file.filename();
  std::error_code ignored;
  if (!fs::equivalent(file, to, ignored)) fs::copy_file(file, to, fs::copy_options::overwrite_existing);
}

/// Copies a subfolder if it holds nothing but files of text, e.g. templates or the options of a pooling.
void copy_subfolder(const fs::path& from, const fs::path& to) {
  constexpr uintmax_t kMaxBytes = 16 << 20;  // more is data
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(from)) {
    const bool is_config = entry.path().filename() == "config.json";
    if (!entry.is_regular_file() || !(is_config || is_kept(entry.path())) || entry.file_size() > kMaxBytes) return;
    files.push_back(entry.path());
  }
  if (files.empty()) return;
  create_folder((to / from.filename()).string());
  for (const fs::path& file : files) copy_into(file, to / from.filename());
}

/// Copies the files of text of a folder for which `keeps(name)` is true.
template <class Keeps>
void copy_companions(const fs::path& from, const fs::path& to, const Keeps& keeps) {
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!keeps(name)) continue;
    if (entry.is_directory() && !name.starts_with(".")) copy_subfolder(entry.path(), to);
    if (entry.is_regular_file() && is_kept(entry.path())) copy_into(entry.path(), to);
  }
}

/// Names the class that reads the copied tokenizer.json in tokenizer_config.json, because config.json in the same
/// folder is of another model.
void name_class(const fs::path& from, const fs::path& to) {
  const fs::path file = to / kTokenizerConfig;
  json config = fs::exists(file) ? read_json_object(file.string(), "tokenizer") : json::object();
  if (config.contains("tokenizer_class")) return;
  const std::string name = text::class_that_reads((from / kTokenizer).string(), config);
  if (name.empty()) return;
  config["tokenizer_class"] = name;
  write_file(file.string(), config.dump(2) + "\n");
}

void write_files(const text::TokenizerFiles& files, const fs::path& to) {
  write_file((to / kTokenizer).string(), files.tokenizer.dump() + "\n");
  write_file((to / kTokenizerConfig).string(), files.config.dump(2) + "\n");
}

/// Writes the files of a tokenizer that is not part of the model's source folder.
void copy_tokenizer(const std::string& source, const fs::path& to) {
  if (source == "bytes") return write_files(text::files_of_bytes(), to);
  if (formats::is_gguf(source)) {
    const formats::GgufFile file(source);
    if (file.has("tokenizer.ggml.model")) write_files(text::tokenizer_of_gguf(file), to);
    return;
  }
  const fs::path folder = folder_of_tokenizer(source);
  if (!is_folder(folder.string())) return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!belongs_to_tokenizer(entry.path().filename().string())) continue;
    if (entry.is_directory()) copy_subfolder(entry.path(), to);
    if (entry.is_regular_file()) copy_into(entry.path(), to);
  }
  if (fs::exists(folder / kTokenizer)) name_class(folder, to);
}

/// Writes a file of a tokenizer under the name that readers of folders look for, and the config beside it.
void copy_renamed(const fs::path& file, const fs::path& to) {
  const std::string ending = file.extension().string();
  fs::copy_file(file, to / (ending == ".json" ? kTokenizer : ending == ".txt" ? "vocab.txt" : "tokenizer.model"));
  const fs::path config = file.parent_path() / kTokenizerConfig;
  if (fs::exists(config)) copy_into(config, to);
}

/// Returns chat_template of the folder's tokenizer_config.json; null = there is none.
json template_in_config(const fs::path& folder) {
  const fs::path file = folder / kTokenizerConfig;
  return fs::exists(file) ? read_json_object(file.string(), "tokenizer").value("chat_template", json()) : json();
}

bool has_template(const fs::path& folder) {
  for (const char* name : {kTemplate, kOldTemplate, kTemplates})
    if (fs::exists(folder / name)) return true;
  return !template_in_config(folder).is_null();
}

/// Copies the chat templates of a folder, which may be a part of its tokenizer_config.json.
void copy_templates(const fs::path& from, const fs::path& to) {
  for (const char* name : {kTemplate, kOldTemplate})
    if (fs::exists(from / name)) copy_into(from / name, to);
  if (fs::is_directory(from / kTemplates)) copy_subfolder(from / kTemplates, to);
  const json stored = template_in_config(from);
  if (stored.is_null()) return;
  const fs::path file = to / kTokenizerConfig;
  json config = fs::exists(file) ? read_json_object(file.string(), "tokenizer") : json::object();
  config["chat_template"] = stored;
  write_file(file.string(), config.dump(2) + "\n");
}

}  // namespace

json exported_config(const SavedModel& saved, const models::Registry& models, at::ScalarType dtype) {
  const models::ModelShape& shape = saved.model->model().shape;
  const auto to_json = shape.architecture->hugging_face.to_json;
  require(to_json != nullptr, "export", "models of architecture ", shape.architecture->name,
          " cannot be written as a Hugging Face folder");
  json config = to_json(shape);
  if (is_folder(saved.source)) config = with_changes(checkpoint::read_config(saved.source), models, config);
  if (!is_folder(saved.source) || !has_tokenizer_of_source(saved)) set_token_ids(saved, config);
  config["dtype"] = name_of(dtype);
  if (config.contains("torch_dtype")) config["torch_dtype"] = name_of(dtype);
  return config;
}

void write_companions(const SavedModel& saved, const std::string& to) {
  const bool is_own = is_folder(saved.source) && has_tokenizer_of_source(saved);
  const auto keeps = [&](const std::string& name) {
    return is_own || !(belongs_to_tokenizer(name) || name == "generation_config.json");
  };
  if (is_folder(saved.source)) copy_companions(saved.source, to, keeps);
  if (!is_own && saved.model->model().shape.task().reads_text()) copy_tokenizer(saved.tokenizer_source, to);
}

void write_companions(const std::string& from, const std::string& tokenizer, const std::string& to) {
  copy_companions(from, to, [](const std::string& file) { return !belongs_to_tokenizer(file); });
  const std::string name = fs::path(tokenizer).filename().string();
  if (tokenizer == "bytes" || is_folder(tokenizer) || formats::is_gguf(tokenizer) || belongs_to_tokenizer(name))
    copy_tokenizer(tokenizer, to);
  else
    copy_renamed(tokenizer, to);
  if (!has_template(to)) copy_templates(from, to);
}

}  // namespace colossal::run
