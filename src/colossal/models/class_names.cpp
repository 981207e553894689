#include "colossal/models/class_names.h"

#include <set>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"

namespace colossal::models {
namespace {

constexpr const char* kNames = "id2label";  // key of config.json: the name of each class

std::string made_up_name(int64_t index) { return concat("LABEL_", index); }

}  // namespace

int64_t count_classes(const nlohmann::json& config) {
  return config.contains(kNames) ? static_cast<int64_t>(config[kNames].size()) : config.value("num_labels", int64_t{2});
}

Classes classes_of(const nlohmann::json& config) {
  Classes classes{count_classes(config)};
  if (!config.contains(kNames)) return classes;
  const nlohmann::json& labels = config[kNames];
  bool is_made_up = true;
  for (int64_t i = 0; i < classes.count; ++i) {
    const auto label = labels.find(std::to_string(i));
    require(label != labels.end(), "model", "the keys of id2label must be 0 to ", classes.count - 1, ": got none for ",
            i);
    classes.names.push_back(label->is_number() ? label->dump() : label->get<std::string>());
    is_made_up = is_made_up && classes.names.back() == made_up_name(i);
  }
  if (is_made_up) classes.names.clear();
  return classes;
}

void write_classes(const Classes& classes, nlohmann::json& config) {
  nlohmann::json names = nlohmann::json::object(), numbers = nlohmann::json::object();
  for (int64_t i = 0; i < classes.count; ++i) {
    const std::string name = classes.names.empty() ? made_up_name(i) : classes.names[static_cast<size_t>(i)];
    names[std::to_string(i)] = name;
    numbers[name] = i;
  }
  config[kNames] = std::move(names);
  config["label2id"] = std::move(numbers);
}

void check_class_names(const Classes& classes) {
  const auto count = static_cast<int64_t>(classes.names.size());
  require(count == 0 || count == classes.count, "model", "class_names must be one for each of the classes: got ", count,
          " for ", classes.count, " classes; set model.class_names, or [] to do without");
}

void check_class_names_differ(const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names)
    require(seen.insert(name).second, "model", "class_names must differ: got ", printable(name),
            " twice; give each class a different name in model.class_names");
}

}  // namespace colossal::models
