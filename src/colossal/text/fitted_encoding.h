// Encoding of a text for a model with a limited context.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// The result of encode_fitted().
struct FittedEncoding {
  std::vector<int64_t> ids;
  bool is_cut = false;  ///< true if tokens were left out
};

/// Returns the text with its special tokens (Tokenizer::encode_whole), at most `max_tokens` tokens in all. As the
/// `tokenizers` package does, it truncates the end of the text and keeps the special tokens. If the special tokens
/// alone exceed `max_tokens`, it returns the first `max_tokens` tokens.
FittedEncoding encode_fitted(const Tokenizer& tokenizer, std::string_view text, size_t max_tokens);

}  // namespace colossal::text
