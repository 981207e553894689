// Which tokens end a text that a model writes.
//
//   text::end_ids("models/Llama-3.2-1B-Instruct", *tokenizer);   // {128001, 128008, 128009}
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Ascending, each once: the tokenizer's end token; of a Hugging Face folder `model` eos_token_id of
/// generation_config.json, a number or a list, else of config.json; of a GGUF file those that end a text, a turn
/// (tokenizer.ggml.eot_token_id) and a message (eom_token_id). Of anything else, an empty path for instance, the
/// tokenizer's alone.
/// Errors ("end tokens"): a file that cannot be read, or whose eos_token_id is neither.
std::vector<int64_t> end_ids(const std::string& model, const Tokenizer& tokenizer);

}  // namespace colossal::text
