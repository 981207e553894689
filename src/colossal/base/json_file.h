// A parser for JSON from untrusted sources, with limits on size and depth.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/base/json.h"

namespace colossal {

/// Limits that a parser enforces.
struct JsonLimits {
  int64_t bytes = int64_t{1} << 30;  ///< maximum size of a file; the parse functions do not check it
  int depth = 100;                   ///< maximum nesting of objects and lists, because copying a value is recursive
  /// Maximum number of members of one object, because each new member of an ordered object is compared with those
  /// before it; 0 = no limit.
  int64_t members = 0;
  bool distinct_names = false;  ///< true = refuse an object with two members of a name; false = the last one counts
};

/// Parses any JSON value. `name` is the name of its file or flag in messages.
/// Errors: throws Error(component, name and reason) if the text is not JSON or exceeds the limits.
nlohmann::json parse_json(std::string_view text, const std::string& name, const char* component,
                          const JsonLimits& limits = {});

/// Parses any JSON value like parse_json(), and keeps the members of objects in the order of the text. If `floats` is
/// not null, the function appends the spelling of each number that is not a 64-bit integer, in the order of the text. A
/// double may lose digits of that spelling.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& name, const char* component,
                                          const JsonLimits& limits = {}, std::vector<std::string>* floats = nullptr);

/// Parses a JSON object. `name` is the name of its file in messages.
/// Errors: throws Error(component, name and reason) if the text is not JSON, not an object, or exceeds the limits.
nlohmann::json parse_json_object(std::string_view text, const std::string& name, const char* component,
                                 const JsonLimits& limits = {});

/// Reads the JSON object in a file. Errors: the same as parse_json_object(); Error("file", ...) if the file cannot be
/// read or is too large.
nlohmann::json read_json_object(const std::string& path, const char* component, const JsonLimits& limits = {});

/// Returns true if the text is one JSON value, of any depth. If `is_whole` is false, `text` is the start of a longer
/// text, and a value that is cut off by the end of `text` counts as JSON.
bool is_json(std::string_view text, bool is_whole);

/// Returns `text` for a message: control characters become `?`, and a text of more than 200 bytes is cut there
/// and ends in "...". A hostile name therefore cannot control the terminal.
std::string printable(const std::string& text);

}  // namespace colossal
