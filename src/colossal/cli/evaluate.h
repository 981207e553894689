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

/// `colossal evaluate`: how well a model predicts a text. `program`: what a folder may hold; null: the library's own.
int evaluate(const Arguments& arguments, const run::Program* program);

/// Texts as a model reads them.
struct EncodedTexts {
  std::vector<std::vector<int64_t>> ids;  ///< with the special tokens that open a text
  int64_t bytes = 0;                      ///< of what is predicted: not of a first token that is text
};
/// Of a file: one text, or of a name that ends in .jsonl one a line, a JSON string or an object with one in "text".
/// Errors (of `command`): a file that cannot be read or holds nothing; text that is no UTF-8; those of text_of().
EncodedTexts read_texts(const std::string& path, const text::Tokenizer& tokenizer, const char* command);

}  // namespace colossal::cli
