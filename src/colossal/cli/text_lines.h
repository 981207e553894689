// Lines that hold texts or token ids as JSON, as commands read them.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace colossal::cli {

struct NumberedLine {
  int64_t number;
  std::string text;
};

/// Refuses a pipe or device that is read more than once, of which the second reading finds nothing. Errors (of
/// `command`): a path that exists and is no regular file; `reader` says who reads it: "several ranks read it".
void require_regular_file(const std::string& path, const char* command, const char* reader);

/// Errors (of `command`): always, with the number of the line, which must be `what`.
[[noreturn]] void refuse_line(const NumberedLine& line, const std::string& what, const char* command = "tokenize");
/// Errors: those of refuse_line() for a line that is no JSON, or JSON that is nested too deeply.
nlohmann::json parse_line(const NumberedLine& line, const std::string& what, const char* command = "tokenize");
/// Returns the text of a line: a JSON string, or the string "text" of an object. Errors: those of refuse_line() for any
/// other line.
std::string text_of(const NumberedLine& line, const char* command = "tokenize");

}  // namespace colossal::cli
