#include "colossal/models/activation_key.h"

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

void activation_key(FolderKeys& k, const char* key, std::string& activation, const char* otherwise) {
  const std::vector<std::string> known = names();
  k.choice(key, activation, {known.begin(), known.end()}, otherwise);
}

}  // namespace colossal::models
