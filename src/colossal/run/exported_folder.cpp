#include "colossal/run/exported_folder.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/model_path.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/checkpoint/ldm/file.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/run/adapter_end_ids.h"
#include "colossal/run/config_changes.h"
#include "colossal/run/stored_config.h"
#include "colossal/text/chat_template.h"
#include "colossal/text/end_tokens.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
#include "colossal/text/tokenizers/tokenizer_class.h"
#include "colossal/text/tokenizers/tokenizer_files.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kTokenizerConfig[] = "tokenizer_config.json", kTokenizer[] = "tokenizer.json",
               kTemplates[] = "additional_chat_templates", kTemplateFile[] = "chat_template.jinja",
               kOldTemplate[] = "chat_template.json", kConfigFile[] = "config.json",
               kGenerationFile[] = "generation_config.json", kEndKey[] = "eos_token_id", kPadKey[] = "pad_token_id";

/// Where the files of a model come from.
struct Origin {
  const models::ModelShape& shape;
  std::string source;     ///< the folder or file that defined the model; empty = a preset
  std::string tokenizer;  ///< "bytes", a folder, a file
};

/// A run's own files are the source of its model and of its tokenizer.
Origin origin_of(const SavedModel& saved) {
  const models::ModelShape& shape = saved.model->model().shape;
  return saved.files.empty() ? Origin{shape, saved.source, saved.tokenizer_source}
                             : Origin{shape, saved.files, saved.files};
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return !path.empty() && fs::is_directory(path, ignored);
}

bool exists_at(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// Returns true if the model's tokenizer is the one of its source folder.
bool has_tokenizer_of_source(const Origin& origin) {
  std::error_code ignored;
  return origin.tokenizer == origin.source ||
         (origin.tokenizer != "bytes" &&
          fs::equivalent(text::folder_of_tokenizer(origin.tokenizer), origin.source, ignored));
}

/// Returns `source`, a config.json, for a model whose family writes `ours`. Only keys change that the family would have
/// written with another value for `source`, so that the spelling of all others stays.
json with_changes(const json& source, const models::Registry& models, const json& ours) {
  const models::ModelShape shape = models.shape_of(source);
  const json before = shape.architecture->to_json()(shape);
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
  if (ours.contains("architectures") && ours.contains("model_type") && config["model_type"] == ours["model_type"])
    config["architectures"] = ours["architectures"];
  return config;
}

/// Sets the token ids of a model that writes or scores text to those of its tokenizer.
void set_token_ids(const Origin& origin, json& config) {
  const models::ModelShape& shape = origin.shape;
  const std::string& source = origin.tokenizer;
  const bool has_one =
      source == "bytes" || (formats::is_gguf(source) ? text::has_tokenizer(source) : exists_at(source));
  if (!(shape.task().generates() || shape.outputs() > 0) || !has_one) return;
  const auto tokenizer = text::make_tokenizer(source);
  std::vector<int64_t> ends = text::end_ids(formats::is_gguf(source) ? source : "", *tokenizer);
  std::erase_if(ends, [&](int64_t id) { return id >= shape.vocabulary; });
  config[kEndKey] = ends.size() > 1 ? json(ends) : ends.empty() ? json() : json(ends.front());
  if (shape.task().answers()) return;  // its decoder begins with decoder_start_token_id
  const int64_t begin = tokenizer->begin_id();
  config["bos_token_id"] = begin < 0 || begin >= shape.vocabulary ? json() : json(begin);
}

/// Removes a pad_token_id that ends texts from the config of a model with a new head of scores: transformers reads the
/// score at the last token that is not this one. The default of a config class may be such a token, too.
void set_padding(const Origin& origin, json& config) {
  json ends = config.value(kEndKey, json());
  if (!ends.is_array()) ends = json::array({ends});
  for (const int64_t id : text::end_ids(origin.source)) ends.push_back(id);
  const json pad = config.value(kPadKey, json());
  config[kPadKey] = std::find(ends.begin(), ends.end(), pad) == ends.end() ? pad : json();
}

const char* name_of(at::ScalarType dtype) {
  if (dtype == at::kDouble) return "float64";
  if (dtype == at::kBFloat16) return "bfloat16";
  return dtype == at::kHalf ? "float16" : "float32";
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns true for files that define the ids of a tokenizer.
bool is_vocabulary(const std::string& name) {
  return is_one_of(name, {kTokenizer, "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model"});
}

bool is_template(const std::string& name) { return is_one_of(name, {kTemplateFile, kOldTemplate, kTemplates}); }

/// Returns true for files of tokenizers and chat templates, which belong to a vocabulary.
bool belongs_to_tokenizer(const std::string& name) {
  return is_vocabulary(name) || is_template(name) ||
         is_one_of(name, {kTokenizerConfig, "special_tokens_map.json", "added_tokens.json"});
}

/// Returns true for a file that a folder with other weights can keep.
bool is_kept(const fs::path& path) {
  const std::string name = path.filename().string(), ending = path.extension().string();
  const bool describes_weights = name.ends_with(".index.json") ||
                                 is_one_of(name, {kConfigFile, "params.json", "adapter_config.json",
                                                  "quantize_config.json", "quant_config.json", "hf_quant_config.json"});
  const bool is_text = is_one_of(ending, {".json", ".jinja", ".txt", ".model", ".tiktoken", ".py", ".md"}) ||
                       name.starts_with("LICENSE") || name.starts_with("NOTICE");
  return is_text && !describes_weights && !name.starts_with(".");
}

void copy_into(const fs::path& file, const fs::path& folder) {
  const fs::path to = folder / file.filename();
  std::error_code ignored;
  if (!fs::equivalent(file, to, ignored)) copy_file(file.string(), to.string());
}

/// Copies a subfolder if it holds nothing but files of text, e.g. templates or the options of a pooling.
void copy_subfolder(const fs::path& from, const fs::path& to) {
  constexpr uintmax_t kMaxBytes = 16 << 20;  // more is data
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(from)) {
    const bool is_config = entry.path().filename() == kConfigFile;
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

/// Returns which files of a source folder a folder of its model keeps.
auto of_source(const std::string& folder, bool with_tokenizer) {
  // other files of a run describe its training
  return [=, holds_run = is_run(folder)](const std::string& name) {
    return belongs_to_tokenizer(name) || name == kGenerationFile ? with_tokenizer : !holds_run;
  };
}

/// Names the class that reads the copied tokenizer.json in tokenizer_config.json, because config.json in the same
/// folder is of another model.
void name_class(const fs::path& tokenizer, const fs::path& to) {
  const fs::path file = to / kTokenizerConfig;
  json config = fs::exists(file) ? read_json_object(file.string(), "tokenizer") : json::object();
  if (config.contains("tokenizer_class")) return;
  const std::string name = text::class_that_reads(tokenizer.string(), config);
  if (name.empty()) return;
  config["tokenizer_class"] = name;
  write_file(file.string(), config.dump(2) + "\n");
}

/// Which files of a tokenizer are written.
struct Wanted {
  bool templates = true;    ///< false = without chat templates that are files of their own
  bool overwrites = true;   ///< false = without files that are there
  bool names_class = true;  ///< name_class()
};

void write_files(const text::TokenizerFiles& files, const fs::path& to, const Wanted& wanted) {
  for (const auto& [name, text] :
       {std::pair(kTokenizer, files.tokenizer.dump()), {kTokenizerConfig, files.config.dump(2)}})
    if (wanted.overwrites || !exists_at(to / name)) write_file((to / name).string(), text + "\n");
}

/// Returns the name under which a folder holds the tokenizer that is the file `file` alone.
std::string name_in_folder(const fs::path& file) {
  const std::string name = file.filename().string(), ending = file.extension().string();
  if (is_vocabulary(name)) return name;
  if (ending == ".json") return kTokenizer;
  if (ending == ".txt") return "vocab.txt";
  return ending == ".model" || ending == ".spm" ? "tokenizer.model" : name;  // names of ranks say how they split words
}

/// Returns true if a folder with this tokenizer file has another one that is read instead.
bool is_passed_over(const fs::path& file) {
  for (const char* name : {kTokenizer, "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt"}) {
    if (file.filename() == name) return false;
    if (exists_at(file.parent_path() / name)) return true;
  }
  return true;  // it has a name of its own
}

/// Writes the files of the tokenizer `source`: a folder's files, or a file with the other files of its folder that are
/// not another tokenizer.
void copy_tokenizer(const std::string& source, const fs::path& to, const Wanted& wanted = {}) {
  if (source == "bytes") return write_files(text::files_of_bytes(), to, wanted);
  if (formats::is_gguf(source)) {
    const formats::GgufFile file(source);
    if (file.has("tokenizer.ggml.model")) write_files(text::tokenizer_of_gguf(file), to, wanted);
    return;
  }
  const fs::path folder = text::folder_of_tokenizer(source);
  const bool is_alone = !is_folder(source) && is_passed_over(source);
  const std::string alone = is_alone ? name_in_folder(source) : "";
  if (!is_folder(folder.string())) return;
  const auto is_wanted = [&](const std::string& name) { return wanted.overwrites || !exists_at(to / name); };
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool is_other = is_alone && is_vocabulary(name) && !(alone == "vocab.json" && name == "merges.txt");
    if (!(belongs_to_tokenizer(name) || (is_alone && name == "encoding.json")) || is_other) continue;
    if ((!wanted.templates && is_template(name)) || !is_wanted(name)) continue;
    if (entry.is_directory()) copy_subfolder(entry.path(), to);
    if (entry.is_regular_file()) copy_into(entry.path(), to);
  }
  std::error_code ignored;
  if (is_alone && is_wanted(alone) && !fs::equivalent(source, to / alone, ignored))
    copy_file(source, (to / alone).string());
  const fs::path json_file = is_alone ? fs::path(source) : folder / kTokenizer;
  if (wanted.names_class && exists_at(to / kTokenizer) && exists_at(json_file) && (!is_alone || alone == kTokenizer))
    name_class(json_file, to);
}

/// Returns chat_template of the folder's tokenizer_config.json; null = there is none.
json template_in_config(const fs::path& folder) {
  const fs::path file = folder / kTokenizerConfig;
  return fs::exists(file) ? read_json_object(file.string(), "tokenizer").value("chat_template", json()) : json();
}

/// Copies the chat templates of a folder, which may be a part of its tokenizer_config.json.
void copy_templates(const fs::path& from, const fs::path& to) {
  for (const char* name : {kTemplateFile, kOldTemplate})
    if (fs::exists(from / name)) copy_into(from / name, to);
  if (fs::is_directory(from / kTemplates)) copy_subfolder(from / kTemplates, to);
  const json stored = template_in_config(from);
  if (stored.is_null()) return;
  const fs::path file = to / kTokenizerConfig;
  json config = fs::exists(file) ? read_json_object(file.string(), "tokenizer") : json::object();
  config["chat_template"] = stored;
  write_file(file.string(), config.dump(2) + "\n");
}

/// Removes the chat templates of a folder.
void remove_templates(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {kTemplateFile, kOldTemplate, kTemplates}) fs::remove_all(folder / name, ignored);
  if (template_in_config(folder).is_null()) return;
  const std::string file = (folder / kTokenizerConfig).string();
  json config = read_json_object(file, "tokenizer");
  config.erase("chat_template");
  write_file(file, config.dump(2) + "\n");
}

/// Returns true if `source` is a folder that has the config.json of a model.
bool has_config_file(const std::string& source) {
  return is_folder(source) && exists_at(fs::path(model_folder(source)) / kConfigFile);
}

/// Returns true if the folder of a run gets a config.json. One of diffusers cannot describe every model, such as one
/// with other frequencies of times, but any that comes from such a folder.
bool has_model_file(const StartedModel& model) {
  const models::Architecture& architecture = *model.shape.architecture;
  const std::string& from = model.config.from;
  return architecture.hugging_face.to_json ||
         (architecture.diffusers.to_json && (has_config_file(from) || checkpoint::ldm_part(from)));
}

/// Returns config.json of a model that comes from there.
json config_from(const Origin& origin, const models::Registry& models, at::ScalarType dtype) {
  const auto to_json = origin.shape.architecture->to_json();
  require(to_json != nullptr, "export", "models of architecture ", origin.shape.architecture->name,
          " cannot be written as a folder of transformers or diffusers");
  json config = to_json(origin.shape);
  const bool has_config = has_config_file(origin.source);
  bool has_new_head = origin.shape.outputs() > 0;
  if (has_config) {
    const json source = checkpoint::read_config(origin.source);
    has_new_head = has_new_head && models.shape_of(source).outputs() == 0;
    config = with_changes(source, models, config);
  }
  if (!origin.shape.architecture->hugging_face.to_json) return config;  // one of diffusers has no further keys
  if (!has_config || !has_tokenizer_of_source(origin)) set_token_ids(origin, config);
  if (has_new_head) set_padding(origin, config);
  config["dtype"] = name_of(dtype);
  if (config.contains("torch_dtype")) config["torch_dtype"] = name_of(dtype);
  return config;
}

/// Returns generation_config.json for a model with this config.json, with more end tokens. `from`: the folder whose
/// file it changes; the file is made if there is none.
json generation_config(const fs::path& from, const json& config, const std::vector<int64_t>& end_ids) {
  json generation = json::object();
  if (exists_at(from / kGenerationFile)) {
    generation = read_json_object((from / kGenerationFile).string(), "end tokens");
  } else {
    for (const char* key : {"bos_token_id", kEndKey, kPadKey, "decoder_start_token_id"})
      if (config.contains(key) && !config[key].is_null()) generation[key] = config[key];
  }
  if (end_ids.empty()) return generation;
  json ends = generation.value(kEndKey, json());
  if (ends.is_null()) ends = config.value(kEndKey, json());
  if (!ends.is_array()) ends = ends.is_null() ? json::array() : json::array({ends});
  for (const int64_t id : end_ids)
    if (std::find(ends.begin(), ends.end(), json(id)) == ends.end()) ends.push_back(id);
  generation[kEndKey] = ends.size() == 1 ? ends.front() : ends;
  return generation;
}

/// Writes a file unless it has that content.
void write_changed(const fs::path& path, const std::string& text) {
  constexpr int64_t kMaxBytes = 64 << 20;
  if (!exists_at(path) || read_file(path.string(), kMaxBytes) != text) write_file(path.string(), text);
}

/// Returns why a run needs its source later if its folder had this config.json; none = it does not.
std::optional<std::string> lost_by(const json& config, const StartedModel& model, const models::Registry& models) {
  if (model.config.from.empty()) return std::nullopt;
  // A text encoder within the model is not of its folder.
  const json want = run::values_of(
                 models::without_image_prompt(models::without_control(models::without_text_encoder(model.shape)))),
             got = run::values_of(models.resolve_from(config, model.config));
  std::vector<std::string> lost;
  for (const auto& [key, value] : want.items())
    if (!got.contains(key) || got[key] != value) lost.push_back(key);
  if (lost.empty()) return std::nullopt;
  return concat("keep ", model.config.from, " as long as this run is used: config.json of a ",
                model.shape.architecture->name, " cannot express ", join(lost));
}

}  // namespace

json exported_config(const SavedModel& saved, const models::Registry& models, at::ScalarType dtype) {
  return config_from(origin_of(saved), models, dtype);
}

void write_companions(const SavedModel& saved, const std::string& to) {
  const bool has_files = !saved.files.empty();
  if (has_files) copy_companions(saved.files, to, of_source(saved.files, true));
  const bool is_own = !has_files && is_folder(saved.source) && has_tokenizer_of_source(origin_of(saved));
  if (is_folder(saved.source)) copy_companions(saved.source, to, of_source(saved.source, is_own));
  const bool lacks_tokenizer = !is_own && (!has_files || !text::has_tokenizer(saved.files));
  if (lacks_tokenizer && saved.model->model().shape.task().reads_text()) copy_tokenizer(saved.tokenizer_source, to);
}

void write_adapter_companions(const SavedModel& saved, const std::string& to) {
  if (saved.files.empty()) return;
  copy_tokenizer(saved.files, to);
  const fs::path generation = fs::path(saved.files) / kGenerationFile;
  if (exists_at(generation)) copy_into(generation, to);
}

void take_companions_of_adapter(const std::string& adapter, const std::string& to) {
  const fs::path folder = to;
  if (text::has_chat_template(adapter)) {
    remove_templates(folder);
    copy_templates(adapter, folder);
  }
  if (!text::has_tokenizer(to)) return;
  const std::vector<int64_t> ends = end_ids_of_adapter(adapter, *text::make_tokenizer(to), {});
  if (ends.empty()) return;
  const json config = read_json_object((folder / kConfigFile).string(), "export");
  write_changed(folder / kGenerationFile, generation_config(folder, config, ends).dump(2) + "\n");
}

std::optional<std::string> write_model_files(const std::string& run_folder, const StartedModel& model,
                                             const models::Registry& models, bool resumes) {
  const fs::path to = run_folder;
  const models::Task task = model.shape.task();
  const Origin origin{model.shape, model.config.from, model.tokenizer};
  if (task.reads_text())
    copy_tokenizer(model.tokenizer, to,
                   {.templates = model.chat_template.empty(),
                    .overwrites = !resumes,
                    .names_class = !has_tokenizer_of_source(origin)});
  if (!model.chat_template.empty()) write_changed(to / kTemplateFile, model.chat_template);
  std::optional<std::string> lost;
  json config = json::object();
  if (resumes && exists_at(to / kConfigFile)) {
    config = read_json_object((to / kConfigFile).string(), "run");
  } else if (has_model_file(model)) {
    config = config_from(origin, models, model.dtype);
    lost = lost_by(config, model, models);
    if (!lost) write_file((to / kConfigFile).string(), config.dump(2) + "\n");
  } else {
    set_token_ids(origin, config);
  }
  if (!task.generates() && !task.scores()) return lost;  // scores are read at a token that may end a turn
  const bool keeps = resumes && exists_at(to / kGenerationFile);
  const bool takes = is_folder(model.config.from) && has_tokenizer_of_source(origin);
  const fs::path from = keeps ? to : takes ? fs::path(model.config.from) : fs::path();
  const json generation = generation_config(from, config, model.end_ids);
  if (!keeps || !model.end_ids.empty()) write_changed(to / kGenerationFile, generation.dump(2) + "\n");
  return lost;
}

std::string listed_end_tokens(const std::string& folder, const text::Tokenizer& tokenizer) {
  return join(text::end_ids(folder, tokenizer), ", ", [&](int64_t id) { return text::description_of(tokenizer, id); });
}

const std::vector<std::string>& model_file_names() {
  static const std::vector<std::string> names{
      kConfigFile,         kGenerationFile, kTokenizer,    kTokenizerConfig, "special_tokens_map.json",
      "added_tokens.json", "vocab.json",    "merges.txt",  "vocab.txt",      "tokenizer.model",
      "spiece.model",      "encoding.json", kTemplateFile, kOldTemplate,     kTemplates};
  return names;
}

void write_companions(const std::string& from, const std::string& tokenizer, const std::string& to) {
  copy_companions(from, to, [](const std::string& file) { return !belongs_to_tokenizer(file); });
  copy_tokenizer(tokenizer, to);
  if (!text::has_chat_template(to)) copy_templates(from, to);
}

}  // namespace colossal::run
