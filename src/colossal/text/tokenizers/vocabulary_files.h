// Conversion of the older vocabulary files to a tokenizer.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace colossal::text {

/// Returns the tokenizer.json that is equivalent to GPT-2's vocab.json and merges.txt in `folder`. `config` is its
/// tokenizer_config.json, from which add_prefix_space and the surrounding tokens are taken. RoBERTa's <s> and </s> are
/// added if tokenizer_class (else config.json's model_type) is of its family (roberta, bart, longformer, led, mvp). The
/// begin token is added if add_bos_token is true (OPT).
/// See: models/gpt2/tokenization_gpt2.py and models/roberta/tokenization_roberta.py of transformers 5.23.
/// Errors: throws Error if the files cannot be read, or a surrounding token has no id.
nlohmann::json from_vocabulary_and_merges(const std::string& folder, const nlohmann::json& config);

/// Returns the tokenizer.json that is equivalent to BERT's vocab.txt, which has one token per line: WordPiece after
/// BERT's normalizer. Text becomes lower case unless `config`, its tokenizer_config.json, has do_lower_case = false.
/// tokenize_chinese_chars and strip_accents are applied too.
nlohmann::json from_vocabulary_text(const std::string& file, const nlohmann::json& config);

}  // namespace colossal::text
