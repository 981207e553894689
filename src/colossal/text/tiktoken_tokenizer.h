// tiktoken's rank files: a line is a token in base64 and its rank, which is its id.
#pragma once
#include <memory>
#include <string>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Reads a file of ranks. Which pattern cuts words and which special tokens there are the file does not say: that is
/// known of gpt2, r50k_base, p50k_base, cl100k_base, o200k_base and llama3 by the file's name (with any ending) and, of
/// a file that has another, by `encoding.json` beside it: {"pattern": ..., "special_tokens": {"<|end|>": 100257}}.
/// LLaMA 3's `tokenizer.model`, which is a file of ranks too, is known by its 128000 ranks.
///
/// encode() takes special tokens in the text for what they are, as the other tokenizers of this layer do (tiktoken's
/// allowed_special="all").
/// Errors: throws Error("tokenizer", ...) with the line that is damaged, for ranks that are there twice, a byte without
/// a rank, a token of more than 1024 bytes, and a file of which nothing says the pattern.
std::unique_ptr<Tokenizer> read_tiktoken(const std::string& path);

/// The bytes are those of such a file: the first line is base64, a space and a number.
bool looks_like_tiktoken(std::string_view bytes);

}  // namespace colossal::text
