// How the names under tokenizer.ggml.pre cut text in words.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::text {

/// A way to cut, with the names that llama.cpp has for it.
struct GgufWords {
  std::vector<const char*> names;     ///< the first is written
  std::vector<const char*> patterns;  ///< one after the other, each within what the one before left
  bool ignores_merges = false;        ///< a word that is a token is that token
  bool adds_begin = false;            ///< where tokenizer.ggml.add_bos_token is not there
};

/// Errors: throws Error("gguf", ...) where the table does not have the name: guessing would give other tokens.
const GgufWords& gguf_words(const std::string& name, const std::string& path);

/// Returns the words of a tokenizer.json's byte-level pre_tokenizer. Null: llama.cpp has no name for it.
const GgufWords* gguf_words_of(const nlohmann::json& pre_tokenizer, bool ignores_merges);

/// The pre_tokenizer section that a tokenizer.json would have.
nlohmann::json pre_tokenizer_of(const GgufWords& words);

}  // namespace colossal::text
