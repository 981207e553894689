// JSON files that somebody else may have written.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace colossal::checkpoint {

/// The JSON object in a file of at most 1 GiB.
/// Errors: throws Error("file", ...) when it cannot be read, Error(component, ...) when it is not a JSON object.
nlohmann::json read_json_object(const std::string& path, const char* component);

/// The text of a string, escaped for a message: a hostile name cannot draw on the terminal, and is cut at 200 bytes.
std::string printable(const std::string& text);

}  // namespace colossal::checkpoint
