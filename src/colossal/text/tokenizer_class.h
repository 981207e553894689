// A tokenizer.json as transformers reads it: its classes change what the file says by tokenizer_config.json.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace colossal::text {

/// The tokenizer.json `file`, changed as AutoTokenizer of transformers 5.23 changes it. The class is that of
/// tokenizer_class in `config`, which is tokenizer_config.json; else that of config.json beside the file.
///
/// BERT's classes replace the normalizer by do_lower_case, strip_accents and tokenize_chinese_chars; those of
/// byte-level vocabularies set add_prefix_space, GPT-NeoX's drops the post-processor, and LLaMA's cuts by
/// add_prefix_space and legacy. Any class takes options of added tokens from added_tokens_decoder. add_bos_token and
/// add_eos_token change nothing beside a tokenizer.json.
/// Errors: throws Error("tokenizer", ...) for a key that another class would follow and the file contradicts, for ids
/// of added_tokens_decoder that the file contradicts, and for split_special_tokens.
nlohmann::json read_tokenizer_json(const std::string& file, const nlohmann::json& config);

/// The name of the class that reads `file`, for a tokenizer_config.json elsewhere; empty: it is not known here.
std::string class_that_reads(const std::string& file, const nlohmann::json& config);

/// Does what read_tokenizer_json() does, with the contents of the files. `model` is config.json; messages name `file`.
nlohmann::json as_its_class_reads(nlohmann::json tokenizer, const nlohmann::json& config, const nlohmann::json& model,
                                  const std::string& file);

}  // namespace colossal::text
