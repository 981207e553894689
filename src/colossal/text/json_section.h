// How the sections of a tokenizer.json are read: each names its type, and many a pattern.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "colossal/text/regex.h"

namespace colossal::text {

inline std::string type_of(const nlohmann::json& section) { return section.at("type").get<std::string>(); }

/// The member `key` unless it is absent or null.
template <class T>
T value_or(const nlohmann::json& section, const char* key, T otherwise) {
  const auto found = section.find(key);
  return found == section.end() || found->is_null() ? otherwise : found->get<T>();
}

/// The pattern of a Split or Replace: {"Regex": ...} or {"String": ...}.
Regex pattern_of(const nlohmann::json& section);

/// The base64 text of a member as bytes. Errors: throws Error("tokenizer", ...) when it is none.
std::string from_base64(std::string_view text);

}  // namespace colossal::text
