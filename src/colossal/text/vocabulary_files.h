// The older files that stand for a tokenizer.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace colossal::text {

/// What GPT-2's vocab.json and merges.txt in `folder` would be as a tokenizer.json. `config`, its
/// tokenizer_config.json, says what is around a text: RoBERTa's <s> and </s> where tokenizer_class (else config.json's
/// model_type) is of that family (roberta, bart, longformer, led, mvp), the begin token where add_bos_token is true
/// (OPT); and add_prefix_space.
/// See: models/gpt2/tokenization_gpt2.py and models/roberta/tokenization_roberta.py of transformers 5.23.
/// Errors: throws Error where they cannot be read, or a token that is to stand around a text has no id.
nlohmann::json from_vocabulary_and_merges(const std::string& folder, const nlohmann::json& config);

/// What BERT's vocab.txt, a token a line, would be: WordPiece behind BERT's normalizer, in lower case unless `config`,
/// its tokenizer_config.json, says do_lower_case = false (tokenize_chinese_chars and strip_accents count too).
nlohmann::json from_vocabulary_text(const std::string& file, const nlohmann::json& config);

}  // namespace colossal::text
