#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal tokenize --tokenizer NAME [FILE]`: text to token ids or pieces, and back. Reads a file or standard input
/// and writes a JSON line a text to standard output: [1, 2] of ids, ["a", "b"] of pieces. A text is a line without the
/// \n at its end (a \r before it is a character of the text), or with --whole all there is; --json reads lines that are
/// JSON strings, or objects with a string in "text". --decode reads lists of ids a line and writes their texts as JSON
/// strings, bytes that are not UTF-8 as U+FFFD. Lines are encoded or decoded by --threads threads and come out in
/// order. --chat reads chats (text::parse_chat), which the chat template of the tokenizer's folder renders: to ids, or
/// with --rendered to texts as JSON strings. --count writes the number of all tokens alone.
///
/// Errors: those of text::make_tokenizer() and text::ChatTemplate; a line that is no JSON of the kind, with its number;
/// an id outside of the vocabulary; a file that cannot be read to its end; output that cannot be written.
int tokenize(const Arguments& arguments);

}  // namespace colossal::cli
