// A text for a model that takes so many tokens and no more.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

struct FittedEncoding {
  std::vector<int64_t> ids;
  bool is_cut = false;  ///< the text has more tokens than these
};

/// The text with the special tokens around it (Tokenizer::encode_whole), `most` tokens of it: tokens of the text are
/// left out at its end, special tokens stay, as the `tokenizers` package cuts. Where the special tokens alone are more,
/// the first `most` of all.
FittedEncoding encode_fitted(const Tokenizer& tokenizer, std::string_view text, size_t most);

}  // namespace colossal::text
