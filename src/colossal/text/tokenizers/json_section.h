// Helpers to read the sections of a tokenizer.json: each section names its type, and many contain a pattern.
#pragma once
#include <optional>
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

/// Returns the content of an added token, a Replace or the like.
inline std::string content_of(const nlohmann::json& section) { return section.at("content").get<std::string>(); }

/// Returns true if a ByteLevel or an old Metaspace puts a space before a text.
inline bool adds_prefix_space(const nlohmann::json& section) { return value_or(section, "add_prefix_space", true); }

/// Returns the scheme of a Metaspace: always, first or never, or what else the file names.
inline std::string prepend_scheme_of(const nlohmann::json& section) {
  return value_or<std::string>(section, "prepend_scheme", adds_prefix_space(section) ? "always" : "never");
}

/// Returns the text of the member "pattern" if it is of the kind, Regex or String; no value if it is not.
std::optional<std::string> pattern_text(const nlohmann::json& section, const char* kind);

/// Returns the member "pattern" of a Split or Replace: {"Regex": ...} or {"String": ...}. Errors: throws
/// Error("tokenizer", ...) if the string is empty or the regular expression is invalid, see Regex.
Regex pattern_of(const nlohmann::json& section);

/// Returns the bytes that the base64 text encodes; padding (=) at its end is optional. Errors: throws
/// Error("tokenizer", ...) if it is not base64.
std::string from_base64(std::string_view text);

}  // namespace colossal::text
