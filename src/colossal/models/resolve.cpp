#include <algorithm>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/model_path.h"
#include "colossal/base/suggest.h"
#include "colossal/models/class_names.h"
#include "colossal/models/config.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/registry.h"
#include "colossal/models/rotary_keys.h"

namespace colossal::models {
namespace {

/// [model] as it is read when the architecture is known: the common keys and the architecture's own keys.
struct ModelSection {
  struct Keys {
    ModelConfig common;
    OwnSizes& own;
    void fields(Fields& f) {
      own.fields(f);
      common.common_fields(f);
    }
  };
  Keys keys;
  void fields(Fields& f) { f.section("model", keys, ""); }
};

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the name of the table that a key is in: "experts" of "experts.count"; empty = none.
std::string table_of(const std::string& key) {
  const size_t dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

/// Returns the names of the own keys and of the tables that they are in.
std::vector<std::string> names_of(const OwnSizes& own) {
  std::vector<std::string> names;
  for (const KeyHelp& key : describe_own(own))
    for (std::string name = key.key; !name.empty() && !contains(names, name); name = table_of(name))
      names.push_back(name);
  return names;
}

/// Returns the names that are not within a table.
std::vector<std::string> outermost(std::vector<std::string> names) {
  std::erase_if(names, [](const std::string& name) { return name.find('.') != std::string::npos; });
  return names;
}

/// Returns the longest part of a key that is in `names`: the key, or else the innermost table around it; empty = none.
std::string known_part(std::string key, const std::vector<std::string>& names) {
  while (!key.empty() && !contains(names, key)) key = table_of(key);
  return key;
}

void change(int64_t& size, int64_t wanted) {
  if (wanted) size = wanted;
}

/// Changes the sizes that all families have.
void change_sizes(const ModelConfig& config, ModelShape& shape) {
  // otherwise the head size is independent of hidden
  const bool heads_fill_hidden = shape.heads * shape.head_dim == shape.hidden;
  if (config.hidden) shape.ffn = shape.ffn * config.hidden / shape.hidden;  // keeps the preset's ratio
  change(shape.hidden, config.hidden);
  change(shape.layers, config.layers);
  const bool shares_one = shape.kv_heads == 1;  // one kv head remains one with any number of heads (PaLM, Falcon)
  change(shape.kv_heads, config.heads && !config.kv_heads && !shares_one ? config.heads : config.kv_heads);
  change(shape.heads, config.heads);
  change(shape.ffn, config.ffn);
  change(shape.positions, config.positions);
  if (heads_fill_hidden && (config.hidden || config.heads)) {
    require(shape.hidden % shape.heads == 0, "model", "hidden must be divisible by heads: got hidden ", shape.hidden,
            ", heads ", shape.heads);
    shape.head_dim = shape.hidden / shape.heads;
  }
}

void check_used(const ModelConfig& config, const Architecture& architecture) {
  const std::pair<const char*, int64_t> sizes[] = {{"hidden", config.hidden}, {"layers", config.layers},
                                                   {"heads", config.heads},   {"kv_heads", config.kv_heads},
                                                   {"ffn", config.ffn},       {"positions", config.positions}};
  for (const auto& [name, size] : sizes)
    require(size == 0 || architecture.uses(name), "model", name, " has no effect on ", with_article(architecture.name),
            ", which does not use it: got ", size, "; remove it from [model]");
}

/// Returns the config.json of a folder whose weights training can start from.
nlohmann::json config_of(const std::string& folder) {
  require_model_path(folder, "model");
  nlohmann::json config = read_json_object(model_folder(folder) + "/config.json", "model", {.bytes = 16 << 20});
  const auto quantization = config.find("quantization_config");
  const bool is_quantized = quantization != config.end() && quantization->is_object() && !quantization->empty();
  require(!is_quantized, "model", "model.from must be a folder whose weights are not quantized: got ", folder,
          ", whose config.json has a quantization_config; name the folder of the model before quantization, or write "
          "the weights as numbers with `colossal export --from ",
          folder, " --to FOLDER`");
  return config;
}

/// Returns the keys of `now` that have another value in `then`, without those that may differ from a folder's. Keys of
/// rotary positions may if the context is extended.
std::vector<std::string> changed_names(const OwnSizes& then, const OwnSizes& now, const HuggingFace& folder,
                                       bool extends_context) {
  const std::vector<KeyHelp> before = describe_own(then), after = describe_own(now);
  std::vector<std::string> names;
  for (size_t i = 0; i < before.size(); ++i)
    if (before[i].default_value != after[i].default_value && !contains(folder.own_head, before[i].key) &&
        !contains(folder.own_training, before[i].key) && !(extends_context && is_rotary_key(before[i].key)))
      names.push_back(before[i].key);
  return names;
}

/// Returns why some keys must be those of the folder, for the end of a message.
std::string kept_reason(const std::vector<std::string>& changed, const ModelShape& shape) {
  if (contains(changed, "positions"))
    return has_position_table(shape)
               ? concat(": the folder has a table of ", shape.positions, " positions, and weights for no others")
               : concat(", or raise positions to more than the folder's ", shape.positions);
  if (std::any_of(changed.begin(), changed.end(), is_rotary_key) && !has_position_table(shape))
    return "; to extend the context, set model.positions too";
  return "";
}

}  // namespace

ModelShape Registry::preset(const std::string& name) const {
  for (const auto& row : rows_)
    for (const Preset& preset : row->presets) {
      if (name != preset.name) continue;
      ModelShape shape = preset.shape;
      shape.architecture = row;
      if (shape.own.is_empty()) shape.own = row->own;
      return shape;
    }
  throw Error("model", concat("unknown preset `", name, "`", did_you_mean(name, preset_names()),
                              "; `colossal models` lists the presets"));
}

void Registry::read_own(const ModelConfig& config, ModelShape& shape) const {
  const std::vector<std::string> mine = names_of(shape.own);
  for (const auto& [key, entry] : config.own.values()) {
    const std::string name = key.substr(key.find('.') + 1);
    std::string known = known_part(name, mine);
    if (known == name) continue;
    const Architecture* owner = nullptr;  // the first architecture that knows more of the key
    for (const auto& row : rows_)
      if (std::string theirs = known_part(name, names_of(row->own)); theirs.size() > known.size())
        known = std::move(theirs), owner = row.get();
    if (!owner) continue;  // reading the section refuses unknown keys
    const std::string& chosen = config.from.empty() ? config.name : config.from;
    throw Error("config", concat(entry.where, ": `model.", known, "` is a key of models of architecture ", owner->name,
                                 ", and ", chosen, " is ", with_article(shape.architecture->name),
                                 mine.empty() ? ", which has no keys besides the common ones"
                                              : concat(", which has the keys ", join(outermost(mine)))));
  }
  ModelSection section{{{}, shape.own}};
  config.own.read(section);
}

void Registry::check_training(const ModelConfig& config) const {
  if (!config.from.empty()) check_training_from(config_of(config.from));
}

void Registry::check_training_from(const nlohmann::json& source) const {
  const ModelShape shape = read_shape(source);
  const auto check = shape.architecture->hugging_face.check_training;
  if (check) check(FolderConfig(source, shape.architecture->name), shape);
}

ModelShape Registry::resolve(const ModelConfig& config, int64_t tokenizer_vocabulary) const {
  return config.from.empty() ? with_changes(preset(config.name), config, tokenizer_vocabulary)
                             : resolve_from(config_of(config.from), config);
}

ModelShape Registry::resolve_from(const nlohmann::json& source, const ModelConfig& config) const {
  return with_changes(read_shape(source), config, 0);
}

ModelShape Registry::resolve_from(const ModelShape& source, const ModelConfig& config) const {
  return with_changes(source, config, 0);
}

ModelShape Registry::with_changes(ModelShape shape, const ModelConfig& config, int64_t tokenizer_vocabulary) const {
  const bool from_folder = !config.from.empty();
  const OwnSizes own = shape.own;
  ModelShape settled = shape;
  if (from_folder) settle(settled);
  const std::vector<std::string> known = shape.task().class_names;
  read_own(config, shape);
  if (const auto named = shape.task().class_names; named != known) check_class_names_differ(named);
  const bool changes_text = config.vocabulary || config.positions;
  if (from_folder) {
    const bool extends_context =
        config.positions > 0 && config.positions >= settled.positions && !has_position_table(settled);
    std::vector<std::string> changed = changed_names(own, shape.own, shape.architecture->hugging_face, extends_context);
    const std::pair<const char*, int64_t> sizes[] = {{"vocabulary", config.vocabulary},
                                                     {"hidden", config.hidden},
                                                     {"layers", config.layers},
                                                     {"heads", config.heads},
                                                     {"kv_heads", config.kv_heads},
                                                     {"ffn", config.ffn},
                                                     {"positions", extends_context ? 0 : config.positions}};
    for (const auto& [name, size] : sizes)
      if (size) changed.emplace_back(name);
    require(changed.empty(), "model", "sizes come from the folder ", config.from, ": remove ", join(changed),
            " from [model]", kept_reason(changed, settled));
  }
  const bool reads_text = shape.task().reads_text();
  require(reads_text || !changes_text, "model", "vocabulary and positions are keys of text models, not of ",
          config.name, ", whose positions follow from its other sizes; remove them from [model]");
  if (reads_text) change(shape.vocabulary, config.vocabulary || from_folder ? config.vocabulary : tokenizer_vocabulary);
  check_used(config, *shape.architecture);
  change_sizes(config, shape);
  if (config.dropout >= 0) shape.dropout = config.dropout;
  settle(shape);
  require(config.positions == 0 || config.positions == shape.positions, "model",
          "positions of this model follow from rope_original_positions * rope_factor: got positions ", config.positions,
          ", which must be ", shape.positions, "; remove it from [model]");
  return shape;
}

}  // namespace colossal::models
