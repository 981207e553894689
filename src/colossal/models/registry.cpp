#include "colossal/models/registry.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/base/suggest.h"

namespace colossal::models {

double Costs::sum() const { return std::accumulate(blocks.begin(), blocks.end(), first + last); }

Registry& Registry::add(Architecture row) {
  require(!row.name.empty() && row.make && row.costs, "model", "an architecture must have name, make and costs: got ",
          row.name.empty() ? "no name" : row.name);
  const std::vector<std::string> presets = preset_names();
  for (const auto& other : rows_) {
    require(other->name != row.name, "model", "there is an architecture ", row.name, " already; choose another name");
    require(row.hugging_face.model_type.empty() || other->hugging_face.model_type != row.hugging_face.model_type,
            "model", "folders of model_type ", row.hugging_face.model_type, " are read by ", other->name,
            " already; leave out hugging_face of ", row.name);
  }
  for (const Preset& preset : row.presets)
    for (const std::string& other : presets)
      require(preset.name != other, "model", "there is a preset ", other, " already; choose another name in ",
              row.name);
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
  require(config.is_object() && config.contains("model_type") && config["model_type"].is_string(), "model",
          "config.json must name its model_type");
  const auto type = config["model_type"].get<std::string>();
  std::string known;
  for (const auto& row : rows_) {
    if (row->hugging_face.model_type.empty()) continue;
    known += (known.empty() ? "" : ", ") + row->hugging_face.model_type;
    if (type != row->hugging_face.model_type) continue;
    try {
      ModelShape shape = row->hugging_face.from_json(config);
      shape.architecture = row;
      if (shape.own.is_empty()) shape.own = row->own;
      if (row->settle) row->settle(shape);
      shape.validate();
      return shape;
    } catch (const nlohmann::json::exception& e) {
      throw Error("model", concat("config.json lacks a key of ", type, " or has one of the wrong type: ", e.what()));
    }
  }
  throw Error("model", concat("model_type must be one of ", known, ": got ", type));
}

Model make_model(const ModelShape& shape, nn::Layers& layers) {
  shape.validate();
  Model model = shape.architecture->make(shape, layers);
  model.shape = shape;
  model.batch_parts = layers.batch_parts();
  require(static_cast<int64_t>(model.blocks.size()) == shape.layers, "model", shape.architecture->name,
          " must make as many blocks as its shape has layers: got ", model.blocks.size(), " of ", shape.layers);
  return model;
}

Costs costs_of(const ModelShape& shape, int64_t sequence) {
  shape.validate();
  Costs costs = shape.architecture->costs(shape, sequence);
  require(static_cast<int64_t>(costs.blocks.size()) == shape.layers, "model", shape.architecture->name,
          " must tell what each of its blocks costs: got ", costs.blocks.size(), " of ", shape.layers);
  return costs;
}

}  // namespace colossal::models
