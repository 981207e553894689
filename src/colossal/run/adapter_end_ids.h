// The tokens that end the answers of an adapter.
//
//   run::end_ids_of_adapter("runs/lora", *saved.tokenizer, saved.end_ids);     // {151643, 151645}
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/text/tokenizer.h"

namespace colossal::run {

/// Returns `of_model`, the end tokens of the model, with those of the folder of an adapter: eos_token_id of its
/// generation_config.json, or else of its config.json, or else the end token of its tokenizer. A run on chats has there
/// the token that ends a turn (run::write_model_files()). The result is in ascending order, without repetition.
/// Errors ("adapter"): an end token that `tokenizer`, that of the model, does not have, or has as another one. Errors
///                     of text::end_ids() and text::make_tokenizer().
std::vector<int64_t> end_ids_of_adapter(const std::string& folder, const text::Tokenizer& tokenizer,
                                        const std::vector<int64_t>& of_model);

}  // namespace colossal::run
