// Helpers to read the sections of a tokenizer.json: each section names its type, and many contain a pattern.
#pragma once
#include <string>

#include "colossal/base/json.h"
#include "colossal/text/tokenizers/regex.h"

namespace colossal::text {

inline std::string type_of(const nlohmann::json& section) { return section.at("type").get<std::string>(); }

/// Returns the member `key`, or `otherwise` if it is absent or null.
template <class T>
T value_or(const nlohmann::json& section, const char* key, T otherwise) {
  const auto found = section.find(key);
  return found == section.end() || found->is_null() ? otherwise : found->get<T>();
}

/// Returns the member "pattern" of a Split or Replace: {"Regex": ...} or {"String": ...}. Errors: throws
/// Error("tokenizer", ...) if the string is empty or the regular expression is invalid, see Regex.
Regex pattern_of(const nlohmann::json& section);

/// Returns the bytes that the base64 text encodes; padding (=) at its end is optional. Errors: throws
/// Error("tokenizer", ...) if it is not base64.
std::string from_base64(std::string_view text);

}  // namespace colossal::text
