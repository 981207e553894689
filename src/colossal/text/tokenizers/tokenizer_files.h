// The files of a Hugging Face tokenizer, as values.
#pragma once
#include "colossal/base/json.h"

namespace colossal::text {

/// The contents of a tokenizer.json and of its tokenizer_config.json.
struct TokenizerFiles {
  nlohmann::json tokenizer, config;
};

/// Returns files whose tokenizer has the ids of ByteTokenizer: each byte is a token, and no merges join two. The end
/// has no bytes, so it is a special token, which readers of the files also find if a text spells it
/// (ByteTokenizer::kEndSpelling).
TokenizerFiles files_of_bytes();

}  // namespace colossal::text
