// JSON that somebody else may have written.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace colossal {

struct JsonLimits {
  int64_t bytes = int64_t{1} << 30;  ///< of the file
  int depth = 100;                   ///< objects and lists within each other: copying a value calls itself for each
  bool distinct_names = false;       ///< refuse an object that names a member twice, of which the last would count
};

/// Parses any JSON value; `name` is its file or flag, for messages.
/// Errors: throws Error(component, name and reason) if the text is not JSON or exceeds the limits.
nlohmann::json parse_json(std::string_view text, const std::string& name, const char* component,
                          const JsonLimits& limits = {});

/// As parse_json(), with the members of objects in the order of the text. If `floats` is not null, the spelling of each
/// number that is not a 64-bit integer is appended to it, in the order of the text: a double may lose digits.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& name, const char* component,
                                          const JsonLimits& limits = {}, std::vector<std::string>* floats = nullptr);

/// The JSON object that `text` spells; `name` is its file.
/// Errors: throws Error(component, name and reason) when it is not JSON, not an object, or beyond the limits.
nlohmann::json parse_json_object(std::string_view text, const std::string& name, const char* component,
                                 const JsonLimits& limits = {});

/// The JSON object in a file. Errors: parse_json_object()'s; Error("file", ...) when it cannot be read or is too large.
nlohmann::json read_json_object(const std::string& path, const char* component, const JsonLimits& limits = {});

/// The text of a string, escaped for a message: a hostile name cannot draw on the terminal, and is cut at 200 bytes.
std::string printable(const std::string& text);

}  // namespace colossal
