// A tokenizer.json as transformers reads it: its classes change the contents as tokenizer_config.json says.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace colossal::text {

/// Reads the tokenizer.json `file` and changes it as AutoTokenizer of transformers 5.23 does. `config` is
/// tokenizer_config.json. Its tokenizer_class names the class; if it is absent, config.json next to the file does.
///
/// BERT's classes replace the normalizer according to do_lower_case, strip_accents and tokenize_chinese_chars. The
/// classes of byte-level vocabularies set add_prefix_space. GPT-NeoX's class also drops the post-processor. LLaMA's
/// class splits according to add_prefix_space and legacy. CLIP's class keeps only vocabulary, merges and added tokens
/// (set_clip_sections()). Every class takes options of added tokens from
/// added_tokens_decoder. add_bos_token and add_eos_token have no effect next to a tokenizer.json.
/// Errors: throws Error("tokenizer", ...) for a key that another class would apply and the file contradicts, for ids in
/// added_tokens_decoder that the file contradicts, and for split_special_tokens.
nlohmann::json read_tokenizer_json(const std::string& file, const nlohmann::json& config);

/// Returns the name of the class that reads `file`, for a tokenizer_config.json in another folder; empty if it is
/// unknown.
std::string class_that_reads(const std::string& file, const nlohmann::json& config);

/// Does the work of read_tokenizer_json() on the contents of the files. `model` is config.json; messages name `file`.
nlohmann::json as_its_class_reads(nlohmann::json tokenizer, const nlohmann::json& config, const nlohmann::json& model,
                                  const std::string& file);

}  // namespace colossal::text
