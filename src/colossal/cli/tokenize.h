#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal tokenize --tokenizer NAME [FILE]`: converts text to token ids or pieces, and back. Reads a file or
/// standard input and writes one JSON line per text to standard output: [1, 2] for ids, ["a", "b"] for pieces. A text
/// is a line without its final \n (a \r before it is part of the text); with --whole the whole input is one text.
/// --json reads lines that are JSON strings, or objects with a string in "text". --decode reads one list of ids per
/// line and writes the texts as JSON strings, with U+FFFD for bytes that are not UTF-8. --threads threads encode or
/// decode the lines; the output keeps their order. --chat reads chats (text::parse_chat), which the chat template of
/// the tokenizer's folder renders to ids, or with --rendered to texts as JSON strings. --count writes only the total
/// number of tokens.
///
/// Errors: errors of text::make_tokenizer() and text::ChatTemplate; a line that is not JSON of the expected kind, with
///         its number; an id outside of the vocabulary; a file that cannot be read to its end; a failed write.
int tokenize(const Arguments& arguments);

}  // namespace colossal::cli
