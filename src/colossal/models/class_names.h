// The names of classes in a config and in a Hugging Face folder.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::models {

/// Classes as config.json stores them. Classes without names are called LABEL_0, LABEL_1, ... in config.json.
struct Classes {
  int64_t count = 0;
  std::vector<std::string> names{};  ///< one per class, in their order; empty = no names
};

/// Returns the number of classes: the size of id2label, whatever its keys and values, or else num_labels, or else 2.
int64_t count_classes(const nlohmann::json& config);
/// Returns the classes of id2label. Without it, the classes have no names and their number is num_labels, or else 2,
/// the default that transformers does not write. A name that is a number becomes its digits. If all names
/// are LABEL_0, LABEL_1, ..., the classes have none.
/// Errors ("model"): keys of id2label that are not 0, 1, and so on.
Classes classes_of(const nlohmann::json& config);
/// Writes id2label and label2id.
void write_classes(const Classes& classes, nlohmann::json& config);

/// Errors ("model"): a number of names that is neither 0 nor the number of classes.
void check_class_names(const Classes& classes);
/// Checks the names in a config. Published folders may have two classes with one name (ImageNet's "crane").
/// Errors ("model"): a name that occurs twice.
void check_class_names_differ(const std::vector<std::string>& names);

}  // namespace colossal::models
