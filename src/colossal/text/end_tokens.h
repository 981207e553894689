// The tokens at which a model's output ends.
//
//   text::end_ids("models/Llama-3.2-1B-Instruct", *tokenizer);   // {128001, 128008, 128009}
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Returns the end tokens of a model in ascending order, without repetition. They always include the tokenizer's end
/// token. `model` may be:
/// - a Hugging Face folder: adds eos_token_id of generation_config.json, a number or a list; if that file has none,
///   eos_token_id of config.json.
/// - a GGUF file: adds the tokens that end a text, a turn (tokenizer.ggml.eot_token_id) and a message (eom_token_id).
/// - any other path, e.g. an empty one: adds no tokens.
///
/// Errors ("end tokens"): a file that cannot be read, or an eos_token_id that is neither a number nor a list.
std::vector<int64_t> end_ids(const std::string& model, const Tokenizer& tokenizer);
/// Returns the end tokens that `model` defines itself, for callers without a tokenizer. Errors: the same.
std::vector<int64_t> end_ids(const std::string& model);

}  // namespace colossal::text
