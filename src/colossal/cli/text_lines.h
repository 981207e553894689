// Reads texts for commands: lines that hold texts or token ids as JSON, and files of texts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"

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
std::string text_of_line(const NumberedLine& line, const char* command = "tokenize");

/// Texts as token ids.
struct EncodedTexts {
  std::vector<std::vector<int64_t>> ids;  ///< token ids, including the special tokens at the start of a text
  int64_t bytes = 0;                      ///< bytes of the texts without each first token, which is not predicted
};
/// Reads and encodes the texts of a file. A file whose name ends in .jsonl has one text per line: a JSON string, or an
/// object with a string in "text". Any other file is one text. Errors (of `command`): a file that cannot be read or has
/// no text; text that is not UTF-8; errors of text_of_line().
EncodedTexts read_texts(const std::string& path, const text::Tokenizer& tokenizer, const char* command);

}  // namespace colossal::cli
