#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal tokenizer train --vocabulary-size N --output FOLDER FILE...`: learns a byte-level BPE vocabulary from text
/// and writes FOLDER/tokenizer.json. --special names a token that stands for itself, as often as wanted: these are the
/// first ids; --least-count says how often a pair must be there to be joined, --threads how many count words. A line
/// with its end is a text: no word goes across it.
///
/// Errors: those of text::learn_bpe(); a file that cannot be read to its end; a tokenizer.json that is there already.
int tokenizer(const Arguments& arguments);

}  // namespace colossal::cli
