// Conversion between the vocabulary of a GGUF file and a tokenizer.json with its tokenizer_config.json.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/formats/gguf_file.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/tokenizer_files.h"

namespace colossal::text {

/// Returns the tokenizer files that describe the vocabulary of a GGUF file. Values of tokenizer.ggml.model that it
/// reads: gpt2 (byte-level BPE; tokenizer.ggml.pre must say how words are split), llama (SentencePiece's BPE: pieces
/// with scores), bert (WordPiece), t5 (SentencePiece's unigram). Tokens of type control, unknown and user-defined are
/// found in text. add_bos_token and add_eos_token say which tokens surround a text; if they are absent, llama.cpp's
/// defaults apply.
/// Errors: throws Error("gguf", file, key and rule) on another model, a `pre` that is missing or not supported, lists
///         of unequal length, duplicate tokens, ids outside the vocabulary.
TokenizerFiles tokenizer_of_gguf(const formats::GgufFile& file);

/// Reads the tokenizer of a GGUF file.
/// Errors: as tokenizer_of_gguf() and make_hugging_face_tokenizer(); a file without a vocabulary.
std::unique_ptr<Tokenizer> read_gguf_tokenizer(const std::string& path, Scope scope = Scope::Text);

/// Returns the "tokenizer.*" values of a GGUF file for a tokenizer, the inverse of tokenizer_of_gguf(). `source` is a
/// name that make_tokenizer() takes: "bytes", a folder, a file, a GGUF file. `vocabulary` is the number of tokens of
/// the model. Tokens beyond the tokenizer's own are named [PAD7] and so on. The chat template of the folder is
/// included.
/// Errors: throws Error("gguf", ...) for a tokenizer that llama.cpp cannot name: another way to split words, a
///         normalizer other than NFC (which llama.cpp's files leave out), a model other than byte-level BPE and
///         SentencePiece. Also if the tokenizer has more tokens than `vocabulary`.
formats::GgufValues gguf_of_tokenizer(const std::string& source, int64_t vocabulary);

/// Adds tokens at which readers of a GGUF file end a text: those that end a text, a turn or a message. A file can have
/// one of each, so at most three in all; further ids are left out.
void add_end_ids(const std::vector<int64_t>& ids, formats::GgufValues& values);

}  // namespace colossal::text
