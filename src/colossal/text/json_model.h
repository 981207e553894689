// The model section of a tokenizer.json.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "colossal/text/vocabulary.h"

namespace colossal::text {

/// BPE, Unigram, WordPiece or WordLevel; old files name no type, it follows from what is there. `bytes`: words come as
/// bytes of the text, as PreTokenizer::makes_bytes() says (of a BPE).
/// Errors: throws Error("tokenizer", ...) naming a type or option that is not understood (a dropout that is not 0, a
/// key that is unknown), and on damage.
std::unique_ptr<WordModel> parse_model(const nlohmann::json& section, bool bytes);

/// "BPE", "Unigram", "WordPiece" or "WordLevel".
const char* model_type(const nlohmann::json& section);

}  // namespace colossal::text
