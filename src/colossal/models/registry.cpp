#include "colossal/models/registry.h"

#include <algorithm>

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/suggest.h"
#include "colossal/models/config.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/embedding_noise.h"
#include "colossal/nn/reports.h"
#include "colossal/nn/running_step.h"

namespace colossal::models {

namespace {

std::vector<std::string> model_types(const HuggingFace& folder) {
  if (folder.model_type.empty()) return {};
  std::vector<std::string> types{folder.model_type};
  types.insert(types.end(), folder.also.begin(), folder.also.end());
  return types;
}

constexpr char kClassKey[] = "_class_name";  // of diffusers' config.json

std::vector<std::string> names_of_ignored(const std::vector<IgnoredTensor>& ignored) {
  std::vector<std::string> names;
  for (const IgnoredTensor& tensor : ignored) names.push_back(tensor.name);
  return names;
}

/// Checks that a form of folders has its functions. `type`: the value of `key`, which names the form in config.json;
/// empty = there are no such folders.
template <class Form>
void check_form(const std::string& type, const char* key, const Form& form, const std::string& name) {
  require(type.empty() || (form.names && form.from_json && form.to_json), "model", "an architecture with a ", key,
          " must have its names, from_json and to_json: got ", name, " without; set them, or leave out ",
          std::string(key).substr(std::string(key).find('.') + 1));
}

/// Checks the names of the keys that may differ from a folder's.
void check_free_names(const Architecture& row) {
  const std::vector<KeyHelp> keys = describe_own(row.own);
  for (const std::vector<std::string>* names : {&row.hugging_face.own_head, &row.hugging_face.own_training})
    for (const std::string& name : *names)
      require(std::any_of(keys.begin(), keys.end(), [&](const KeyHelp& key) { return key.key == name; }), "model",
              "hugging_face.own_head and own_training must be names of own keys: got ", name, " of ", row.name,
              "; the keys of a table have dotted names, such as experts.count");
}

}  // namespace

std::vector<std::string> HuggingFace::ignored_names() const { return names_of_ignored(ignored); }
std::vector<std::string> Diffusers::ignored_names() const { return names_of_ignored(ignored); }

bool Architecture::uses(const std::string& size) const {
  return std::find(unused.begin(), unused.end(), size) == unused.end();
}

Registry& Registry::add(Architecture row) {
  require(!row.name.empty() && row.make, "model", "an architecture must have a name and a make: got ",
          row.name.empty() ? "no name" : row.name);
  for (const KeyHelp& own : describe_own(row.own))
    for (const KeyHelp& common : describe_config(ModelConfig()))
      require(own.key.substr(0, own.key.find('.')) != common.key, "model",
              "keys of an architecture must differ from the keys of all models: got ", own.key, " of ", row.name,
              "; choose another name");
  const std::vector<std::string> presets = preset_names();
  for (const auto& other : rows_) {
    require(other->name != row.name, "model", "the name of an architecture must be new: ", row.name,
            " is registered already; choose another name");
    for (const std::string& mine : model_types(row.hugging_face))
      for (const std::string& taken : model_types(other->hugging_face))
        require(mine != taken || (row.hugging_face.matches && other->hugging_face.matches), "model",
                "folders of model_type ", mine, " are read by ", other->name, " already; leave out hugging_face of ",
                row.name, ", or set its `matches` in both");
    const std::string& mine = row.diffusers.class_name;
    require(mine.empty() || mine != other->diffusers.class_name, "model", "folders of diffusers' class ", mine,
            " are read by ", other->name, " already; leave out diffusers of ", row.name);
  }
  for (const Preset& preset : row.presets)
    for (const std::string& other : presets)
      require(preset.name != other, "model", "the name of a preset must be new: ", other,
              " is registered already; choose another name in ", row.name);
  check_form(row.hugging_face.model_type, "hugging_face.model_type", row.hugging_face, row.name);
  check_form(row.diffusers.class_name, "diffusers.class_name", row.diffusers, row.name);
  check_free_names(row);
  rows_.push_back(std::make_shared<const Architecture>(std::move(row)));
  return *this;
}

std::shared_ptr<const Architecture> Registry::at(const std::string& name) const {
  std::vector<std::string> names;
  for (const auto& row : rows_) {
    if (name == row->name) return row;
    names.push_back(row->name);
  }
  throw Error("model", concat("unknown architecture ", name, did_you_mean(name, names)));
}

std::vector<std::string> Registry::preset_names() const {
  std::vector<std::string> names;
  for (const auto& row : rows_)
    for (const Preset& preset : row->presets) names.push_back(preset.name);
  return names;
}

ModelShape Registry::shape_of(const nlohmann::json& config) const {
  ModelShape shape = read_shape(config);
  settle(shape);
  return shape;
}

void Registry::settle(ModelShape& shape) {
  check_own_ranges(shape.own);
  shape.tied = shape.tied && shape.outputs() == 0;  // no weight of the head is one of tokens
  if (shape.architecture->settle) shape.architecture->settle(shape);
  shape.validate();
}

ModelShape Registry::read_diffusers(const nlohmann::json& config) const {
  const nlohmann::json& named = config[kClassKey];
  require(named.is_string(), "model", kClassKey, " of config.json must be the name of a class: got ",
          printable(named.dump()));
  const auto class_name = named.get<std::string>();
  std::vector<std::string> known;
  for (const auto& row : rows_) {
    if (row->diffusers.class_name.empty()) continue;
    known.push_back(row->diffusers.class_name);
    if (known.back() != class_name) continue;
    try {
      ModelShape shape = row->diffusers.from_json(config);
      shape.architecture = row;
      if (shape.own.is_empty()) shape.own = row->own;
      return shape;
    } catch (const nlohmann::json::exception& e) {
      throw Error("model", concat("config.json of ", with_article(class_name),
                                  " lacks a key or has one of the wrong type: ", e.what()));
    }
  }
  throw Error("model", concat(kClassKey, " must be one of ", join(known), ": got ", printable(class_name),
                              did_you_mean(class_name, known)));
}

ModelShape Registry::read_shape(const nlohmann::json& config) const {
  if (config.is_object() && config.contains(kClassKey)) return read_diffusers(config);
  require(config.is_object() && config.contains("model_type") && config["model_type"].is_string(), "model",
          "config.json must name its model_type");
  const auto type = config["model_type"].get<std::string>();
  std::vector<std::string> known;
  for (const auto& row : rows_) {
    const std::vector<std::string> types = model_types(row->hugging_face);
    for (const std::string& one : types)
      if (std::find(known.begin(), known.end(), one) == known.end()) known.push_back(one);
    if (std::find(types.begin(), types.end(), type) == types.end()) continue;
    if (row->hugging_face.matches && !row->hugging_face.matches(config)) continue;
    try {
      ModelShape shape = row->hugging_face.from_json(config);
      shape.architecture = row;
      if (shape.own.is_empty()) shape.own = row->own;
      if (const int64_t outputs = outputs_in(config); outputs > 0 && shape.task().continues())
        shape.set(OutputSizes{outputs});
      return shape;
    } catch (const nlohmann::json::exception& e) {
      throw Error("model", concat("config.json lacks a key of ", type, " or has one of the wrong type: ", e.what()));
    }
  }
  throw Error("model", concat("model_type must be one of ", join(known), ": got ", type,
                              std::find(known.begin(), known.end(), type) == known.end()
                                  ? ""
                                  : ", of a kind that no architecture reads"));
}

namespace {

/// Checks the names of parameters, on which stages_using() relies.
void check_names(const ModelShape& shape, const nn::Parameters& parameters) {
  bool behind_blocks = false;
  for (const nn::Parameter& parameter : parameters.declared()) {
    if (parameter.model != parameters.options().model) continue;
    const std::string name(parameter.own_name());
    const bool in_block = block_of(name, shape.blocks()).has_value();
    require(in_block || !behind_blocks || name.starts_with("norm.") || name.starts_with("head."), "model",
            "parameters made after the blocks must have names that begin with `norm.` or `head.`: got ", parameter.name,
            "; rename it, or make it before the blocks if the first part of the model uses it");
    behind_blocks = behind_blocks || in_block;
  }
}

/// Lets the end of a step reach the model's mixtures of experts.
void end_steps_of_mixtures(Model& model) {
  if (model.mixtures.empty()) return;
  model.end_step = [mixtures = model.mixtures, before = model.end_step](const nn::Reported& reported,
                                                                        std::vector<Metric>& rows) {
    if (before) before(reported, rows);
    nn::ExpertMetrics metrics;
    for (const auto& experts : mixtures) experts->end_step(reported, metrics);
    nn::add_rows(metrics, rows);
  };
}

/// Lets a batch ask for noise on the embeddings of a model that continues text.
void add_noise(const ModelShape& shape, nn::Layers& layers, Embed& embed) {
  if (!embed || !shape.task().continues()) return;
  const auto noise = std::make_shared<nn::EmbeddingNoise>(layers, shape.hidden);
  embed.run = [noise, run = std::move(embed.run)](States& states, const tensor::Batch& batch,
                                                  const nn::ForwardContext& step) {
    run(states, batch, step);
    states[0] = noise->forward(states[0], step);
  };
}

}  // namespace

Model make_model(const ModelShape& shape, nn::Layers& layers) {
  shape.validate();
  Model model = shape.architecture->make(shape, layers);
  add_noise(shape, layers, model.embed);
  model.shape = shape;
  model.batch_parts = layers.batch_parts();
  model.reports = layers.reports();
  model.neighbour_layers = layers.neighbour_layers();
  for (Block& block : model.blocks)
    if (block) block.run = nn::with_running_step(std::move(block.run), layers);
  end_steps_of_mixtures(model);
  require(static_cast<int64_t>(model.blocks.size()) == shape.blocks(), "model", shape.architecture->name,
          " must make as many blocks as its shape has layers: got ", model.blocks.size(), " of ", shape.blocks());
  const bool blocks = std::all_of(model.blocks.begin(), model.blocks.end(), [](const Block& b) { return bool(b); });
  require(model.embed && blocks && model.norm, "model", shape.architecture->name,
          " must make an embed, blocks and a norm: got no ",
          !model.embed ? "embed"
          : !blocks    ? "function in one of the blocks"
                       : "norm (one that does nothing returns its input)");
  require(bool(model.values) == shape.has_values(), "model",
          "a model with a head of values must make it: got none from ", shape.architecture->name,
          "; name a decoder of the library, or train values as a separate model");
  if (model.states.empty()) model.states = {hidden_state(shape.hidden, shape.positions)};
  check_states(model);
  check_names(shape, layers.parameters());
  return model;
}

}  // namespace colossal::models
