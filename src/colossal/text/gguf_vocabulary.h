// The vocabulary of a GGUF file as the tokenizer.json and tokenizer_config.json that its model would have.
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "colossal/base/gguf_file.h"
#include "colossal/text/tokenizer.h"

namespace colossal::text {

struct TokenizerFiles {
  nlohmann::json tokenizer, config;
};

/// Understood under tokenizer.ggml.model: gpt2 (byte-level BPE, of which tokenizer.ggml.pre must say how words are
/// cut), llama (SentencePiece's BPE: pieces with scores), bert (WordPiece), t5 (SentencePiece's unigram). Tokens of
/// type control, unknown and user-defined are found in text; add_bos_token and add_eos_token say what stands around it,
/// else what llama.cpp does.
/// Errors: throws Error("gguf", file, key and rule) on another model, a `pre` that is missing or not understood, lists
///         of unequal length, tokens that are there twice, ids outside the vocabulary.
TokenizerFiles tokenizer_of_gguf(const GgufFile& file);

/// Errors: those of tokenizer_of_gguf() and of a tokenizer.json; a file without a vocabulary.
std::unique_ptr<Tokenizer> read_gguf_tokenizer(const std::string& path);

/// The other way: the values "tokenizer.*" that a GGUF file has of the tokenizer `source` (as make_tokenizer() is given
/// it: bytes, a folder, a file, a GGUF file), with as many tokens as the model has, `vocabulary`; those behind the
/// tokenizer's are [PAD7] and so on. The chat template of the folder is there, too.
/// Errors: throws Error("gguf", ...) for what llama.cpp has no name for: words that are cut in another way, another
///         normalizer than NFC (which llama.cpp's files leave out), models other than byte-level BPE and SentencePiece;
///         more tokens than `vocabulary`.
GgufValues gguf_of_tokenizer(const std::string& source, int64_t vocabulary);

}  // namespace colossal::text
