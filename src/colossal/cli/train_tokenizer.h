#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal tokenizer train --to FOLDER FILE...`: learns a vocabulary of --vocabulary tokens from the lines of files
/// and writes tokenizer.json and tokenizer_config.json, which `--tokenizer FOLDER` reads. --kind: bpe (byte-level) or
/// unigram. A text is a line with its end, or with --json a JSON string or an object with a string in "text". --special
/// tokens come first; --end is the one that closes a document. --like NAME: cut and spell text as that tokenizer.json
/// does. Nothing is written unless all could be read.
///
/// Errors: those of text::TokenizerTrainer; a file that cannot be read; a line that is no JSON of the kind, with its
/// number; a folder that holds a tokenizer already or cannot be written.
int tokenizer(const Arguments& arguments);

}  // namespace colossal::cli
