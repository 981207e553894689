// The ways to split text into words that the key tokenizer.ggml.pre of a GGUF file names.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace colossal::text {

/// A way to split text, with the names that llama.cpp has for it.
struct GgufWords {
  std::vector<const char*> names;     ///< names that are read; the first one is written
  std::vector<const char*> patterns;  ///< applied in order, each within the pieces of the previous one
  bool ignores_merges = false;        ///< a word that is itself a token becomes that token, without merges
  bool adds_begin = false;            ///< default if tokenizer.ggml.add_bos_token is absent
};

/// Returns the words for a name.
/// Errors: throws Error("gguf", ...) for an unknown name, because a guess would give other tokens.
const GgufWords& gguf_words(const std::string& name, const std::string& path);

/// Returns the words of a tokenizer.json's byte-level pre_tokenizer; null if llama.cpp has no name for it.
const GgufWords* gguf_words_of(const nlohmann::json& pre_tokenizer, bool ignores_merges);

/// Returns the equivalent pre_tokenizer section of a tokenizer.json.
nlohmann::json pre_tokenizer_of(const GgufWords& words);

}  // namespace colossal::text
