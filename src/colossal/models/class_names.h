// What classes are called, in a config and in a Hugging Face folder.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::models {

/// Classes as config.json knows them. Those without names are LABEL_0, LABEL_1, ... there.
struct Classes {
  int64_t count = 0;
  std::vector<std::string> names{};  ///< one each, in their order; empty: they have none
};

/// How many id2label has, whatever its keys and values, or else num_labels, or 2 as below.
int64_t count_classes(const nlohmann::json& config);
/// Those of id2label, or else num_labels, which has none, or 2, transformers' default, which it does not write.
/// A name that is a number is that number in digits.
/// Errors ("model"): keys of id2label that are not 0, 1, and so on.
Classes classes_of(const nlohmann::json& config);
/// Writes id2label and label2id.
void write_classes(const Classes& classes, nlohmann::json& config);

/// Errors ("model"): names that are not one for each class.
void check_class_names(const Classes& classes);
/// Checks names that a config gives. Published folders may have two classes of one name (ImageNet's "crane").
/// Errors ("model"): a name that is there twice.
void check_class_names_differ(const std::vector<std::string>& names);

}  // namespace colossal::models
