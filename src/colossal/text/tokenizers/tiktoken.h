// A reader of tiktoken's rank files. Each line has a token in base64 and its rank, which is its id.
#pragma once
#include <memory>
#include <string>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Reads a rank file. The file does not contain the pattern that splits words or the special tokens. For gpt2,
/// r50k_base, p50k_base, cl100k_base, o200k_base and llama3 they follow from the file's name (with any extension). For
/// other names they are read from `encoding.json` next to the file: {"pattern": ..., "special_tokens": {"<|end|>":
/// 100257}}. LLaMA 3's `tokenizer.model`, which is also a rank file, is recognized by its 128000 ranks.
///
/// encode() converts special tokens in the text to their ids, as the other tokenizers of this layer do (tiktoken's
/// allowed_special="all").
/// Errors: throws Error("tokenizer", ...) with the damaged line. Also for duplicate ranks, a byte without a rank, a
/// token of more than 1024 bytes, and a file whose pattern is unknown.
std::unique_ptr<Tokenizer> read_tiktoken(const std::string& path);

/// Returns true if the bytes look like a rank file: the first line is base64, a space and a number.
bool looks_like_tiktoken(std::string_view bytes);

}  // namespace colossal::text
