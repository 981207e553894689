#include "colossal/align/reference_shape.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/run/config_changes.h"

namespace colossal::align {

nlohmann::json computing_keys(const models::ModelShape& shape) {
  nlohmann::json keys = run::values_of(shape);
  keys.erase("model.positions");
  keys.erase("model.dropout");
  for (const auto& key : shape.architecture->hugging_face.own_training) keys.erase(concat("model.", key));
  return keys;
}

void check_reference_shape(const models::ModelShape& reference, const models::ModelShape& model) {
  const nlohmann::json wanted = computing_keys(model), got = computing_keys(reference);
  std::vector<std::string> changed;
  const bool is_same_kind = reference.architecture->name == model.architecture->name;
  if (!is_same_kind) changed = {concat("a ", reference.architecture->name, " and not a ", model.architecture->name)};
  for (const auto& [key, value] : wanted.items()) {
    const std::string other = got.value(key, std::string("none")), own = value.get<std::string>();
    if (is_same_kind && other != own) changed.push_back(concat(key, " ", other, " and not ", own));
  }
  require(changed.empty(), "reference",
          "the reference must have the shape and the vocabulary of the model that is trained: got ", join(changed),
          "; name another model with reference.from, or leave it out for the model from which the run starts");
}

bool drops_tokens(const models::ModelShape& shape) {
  if (shape.part<models::MixtureSizes>().experts == 0) return false;
  const nlohmann::json values = run::values_of(shape);
  return std::stod(values.value("model.experts.capacity", std::string("0"))) > 0;
}

}  // namespace colossal::align
