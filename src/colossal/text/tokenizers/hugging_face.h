// Tokenizers of Hugging Face folders: tokenizer.json, and the files that older folders have instead.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Reads a tokenizer. `path` is a tokenizer.json, BERT's vocab.txt, or a folder. In a folder the first of these is
/// read: tokenizer.json; vocab.json with merges.txt; vocab.txt.
///
/// Supported: the types that Normalizer, PreTokenizer, parse_model, PostProcessor, Decoder and AddedToken list.
///            Truncation and padding are ignored, because the code that makes batches does them.
/// Prompts:   encode_prompt() adds the post-processor's special tokens before a text. It omits those after the text,
///            because the model continues a prompt.
/// Tokens:    tokenizer_config.json next to the file names the end, begin and mask tokens. If it does not, they are
///            </s> or [SEP], <s>, [MASK] and the like. tokenizer_config.json and config.json next to a tokenizer.json
///            change ids as read_tokenizer_json() describes.
/// Errors:    throws Error("tokenizer", ...) naming the part that is not supported, and on any damaged file.
std::unique_ptr<Tokenizer> read_hugging_face_tokenizer(const std::string& path);

/// Creates the tokenizer from the contents of a tokenizer.json and its tokenizer_config.json; `name` appears in
/// messages.
std::unique_ptr<Tokenizer> make_hugging_face_tokenizer(const nlohmann::json& tokenizer, const nlohmann::json& config,
                                                       const std::string& name);

}  // namespace colossal::text
