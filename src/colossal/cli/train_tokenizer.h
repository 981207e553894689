#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal tokenizer train --to FOLDER FILE...`: learns a vocabulary of --vocabulary tokens from the lines of files
/// and writes tokenizer.json and tokenizer_config.json, which `--tokenizer FOLDER` reads. --kind: bpe (byte-level) or
/// unigram. A text is a line with its line end, or with --json a JSON string or an object with a string in "text".
/// --special tokens get the first ids; --end is the token that closes a document. --like NAME: split and spell text
/// like that tokenizer.json. If a file cannot be read, no file is written.
///
/// Errors: errors of text::TokenizerTrainer; a file that cannot be read; a line that is not JSON of the expected kind,
///         with its number; a folder that already holds a tokenizer or cannot be written.
int tokenizer(const Arguments& arguments);

}  // namespace colossal::cli
