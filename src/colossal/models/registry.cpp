#include "colossal/models/registry.h"

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/models/gpt2.h"
#include "colossal/models/llama.h"
#include "colossal/models/vit.h"

namespace colossal::models {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> rows{gpt2_architecture(), llama_architecture(), vit_architecture()};
  return rows;
}

const Architecture& architecture(const std::string& name) {
  for (const Architecture& row : architectures())
    if (name == row.name) return row;
  throw Error("model", concat("unknown architecture ", name));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Architecture& row : architectures())
    for (const Preset& preset : row.presets()) names.push_back(preset.name);
  return names;
}

Model make_model(const ModelShape& shape, nn::Layers& layers) {
  shape.validate();
  Model model = architecture(shape.architecture).make(shape, layers);
  model.batch_parts = layers.batch_parts();
  return model;
}

ModelShape shape_from_json(const nlohmann::json& config) {
  require(config.is_object() && config.contains("model_type") && config["model_type"].is_string(), "model",
          "config.json must name its model_type");
  const auto type = config["model_type"].get<std::string>();
  std::string known;
  for (const Architecture& row : architectures()) {
    known += (known.empty() ? "" : ", ") + std::string(row.model_type);
    if (type != row.model_type) continue;
    try {
      ModelShape shape = row.from_json(config);
      shape.validate();
      return shape;
    } catch (const nlohmann::json::exception& e) {
      throw Error("model", concat("config.json lacks a key of ", type, " or has one of the wrong type: ", e.what()));
    }
  }
  throw Error("model", concat("model_type must be one of ", known, ": got ", type));
}

}  // namespace colossal::models
