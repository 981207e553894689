// The tokenizers of Hugging Face's tokenizer.json, and of the files that older folders have instead.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Reads `path`: a tokenizer.json or BERT's vocab.txt, or a folder with the first, or with vocab.json and merges.txt,
/// or with the second.
///
/// Understood: what Normalizer, PreTokenizer, parse_model, PostProcessor, Decoder and AddedToken name; truncation and
///             padding are left to who makes batches. encode_prompt() puts the special tokens before a text that the
///             post-processor does; those behind it are left out: a prompt goes on. The end, begin and mask tokens are
///             those of tokenizer_config.json beside it, else </s> or [SEP], <s>, [MASK] and their like.
///             tokenizer_config.json and config.json beside a tokenizer.json change ids as read_tokenizer_json() says.
/// Errors: throws Error("tokenizer", ...) naming the part that is not understood, and on any damaged file.
std::unique_ptr<Tokenizer> read_hugging_face_tokenizer(const std::string& path);

/// Makes the tokenizer from the contents of a tokenizer.json and its tokenizer_config.json; `name` appears in messages.
std::unique_ptr<Tokenizer> make_hugging_face_tokenizer(const nlohmann::json& tokenizer, const nlohmann::json& config,
                                                       const std::string& name);

}  // namespace colossal::text
