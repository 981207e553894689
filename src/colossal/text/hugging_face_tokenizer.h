// The BPE tokenizers of Hugging Face's tokenizer.json: byte-level (GPT-2, LLaMA 3) and SentencePiece style (LLaMA 2,
// Mistral).
#pragma once
#include <memory>
#include <string>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Reads `path`, a tokenizer.json, or a folder with one (or with vocab.json and merges.txt, as GPT-2's).
///
/// Understood: model BPE with ranked merges, byte_fallback, ignore_merges; what Normalizer and PreTokenizer name;
///             added tokens; a template that puts special tokens before a text (those behind it are left out: a
///             prompt goes on). The end and begin tokens are those of tokenizer_config.json beside it, else </s>, <s>
///             and their like.
/// Errors: throws Error("tokenizer", ...) naming the part that is not understood, and on any damaged file.
std::unique_ptr<Tokenizer> read_hugging_face_tokenizer(const std::string& path);

}  // namespace colossal::text
