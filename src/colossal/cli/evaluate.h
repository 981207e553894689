#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal evaluate`: measures how well a model predicts a text. `program` has the models that a folder may name;
/// null = the built-in ones.
int evaluate(const Arguments& arguments, const run::Program* program);

/// Texts as token ids.
struct EncodedTexts {
  std::vector<std::vector<int64_t>> ids;  ///< token ids, including the special tokens at the start of a text
  int64_t bytes = 0;                      ///< bytes of the texts without each first token, which is not predicted
};
/// Reads and encodes the texts of a file. A file whose name ends in .jsonl has one text per line: a JSON string, or an
/// object with a string in "text". Any other file is one text. Errors (of `command`): a file that cannot be read or has
/// no text; text that is not UTF-8; errors of text_of().
EncodedTexts read_texts(const std::string& path, const text::Tokenizer& tokenizer, const char* command);

}  // namespace colossal::cli
