#include "colossal/models/activation_key.h"

#include <algorithm>

#include "colossal/base/json.h"
#include "colossal/models/folder_config.h"
#include "colossal/ops/activation.h"

namespace colossal::models {
namespace {

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const ops::Activation& each : ops::activations()) all.emplace_back(each.name);
  return all;
}

}  // namespace

void activation_field(Fields& f, std::string& activation) {
  f.choice("activation", activation, names(),
           "activation function inside the feed-forward layers, named as in transformers");
}

std::string read_activation(const FolderConfig& config, const char* key, const char* otherwise) {
  std::vector<nlohmann::json> known;
  for (const std::string& name : names()) known.emplace_back(name);
  config.must_be_one_of(key, known);
  return config.value(key, otherwise);
}

}  // namespace colossal::models
