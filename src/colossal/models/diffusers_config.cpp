#include "colossal/models/diffusers_config.h"

#include "colossal/base/article.h"
#include "colossal/base/error.h"
#include "colossal/models/built_in.h"
#include "colossal/models/sizes.h"

namespace colossal::models {

void check_diffusers_config(const nlohmann::json& config, const char* class_name, const nlohmann::json& known) {
  for (const auto& [key, value] : config.items()) {
    if (key == "_class_name")
      require(value == class_name, "model", "_class_name must be ", class_name, ": got ", value.dump());
    require(key.starts_with('_') || known.contains(key), "model", "config.json of ", with_article(class_name),
            " must have keys of that class only: got ", key, " = ", value.dump(),
            "; remove the key if it does not change what the model computes");
  }
}

ModelShape settled(ModelShape shape, const std::string& architecture) {
  shape.architecture = built_in().at(architecture);
  check_own_ranges(shape.own);  // before sizes are divided by others
  shape.architecture->settle(shape);
  shape.validate();
  return shape;
}

}  // namespace colossal::models
