// The older files that stand for a tokenizer.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace colossal::text {

/// What GPT-2's vocab.json and merges.txt in `folder` would be as a tokenizer.json.
/// Errors: throws Error where they cannot be read.
nlohmann::json from_vocabulary_and_merges(const std::string& folder);

/// What BERT's vocab.txt, a token a line, would be: WordPiece behind BERT's normalizer, in lower case unless `config`,
/// its tokenizer_config.json, says do_lower_case = false (tokenize_chinese_chars and strip_accents count too).
nlohmann::json from_vocabulary_text(const std::string& file, const nlohmann::json& config);

}  // namespace colossal::text
