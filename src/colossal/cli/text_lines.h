// Parses lines that hold texts or token ids as JSON, for commands.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/json.h"

namespace colossal::cli {

struct NumberedLine {
  int64_t number;
  std::string text;
};

/// Refuses a pipe or device that would be read more than once, because the second read would be empty. Errors (of
/// `command`): a path that exists and is not a regular file. `reader` is the reason in the message: "several ranks read
/// it".
void require_regular_file(const std::string& path, const char* command, const char* reader);

/// Throws an Error (of `command`) with the number of the line, which must be `what`.
[[noreturn]] void refuse_line(const NumberedLine& line, const std::string& what, const char* command = "tokenize");
/// Parses a line of JSON. Errors: refuse_line() for a line that is not JSON or is nested too deeply.
nlohmann::json parse_line(const NumberedLine& line, const std::string& what, const char* command = "tokenize");
/// Returns the text of a line: a JSON string, or the string "text" of an object. Errors: refuse_line() for any other
/// line.
std::string text_of(const NumberedLine& line, const char* command = "tokenize");

}  // namespace colossal::cli
