// The model section of a tokenizer.json.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

/// Parses BPE, Unigram, WordPiece or WordLevel. Old files name no type; it is derived from their keys. `bytes`: the
/// words of a BPE are bytes of the text, as PreTokenizer::makes_bytes() reports.
/// Errors: throws Error("tokenizer", ...) on damage, and names a type or option that is not supported (a dropout other
/// than 0, an unknown key).
std::unique_ptr<WordModel> parse_model(const nlohmann::json& section, bool bytes);

/// Returns the type of a model section: "BPE", "Unigram", "WordPiece" or "WordLevel".
const char* model_type(const nlohmann::json& section);

}  // namespace colossal::text
