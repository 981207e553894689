// A reader of SentencePiece's .model files that does not need its library.
#pragma once
#include <memory>
#include <string>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Reads a .model file: unigram, BPE, word and char models with their normalizer's character map, white space options,
/// byte fallback, user-defined and control symbols.
///
/// encode() equals sentencepiece's Encode: the names of control symbols in a text are plain text. encode_prompt() adds
/// the begin token, if the model has one, before the text. encode_whole() also adds the end token after the text in two
/// cases: tokenizer_config.json next to the file has add_eos_token, or names T5's class of tokenizers, which always
/// adds it. add_bos_token = false in tokenizer_config.json drops the begin token.
///
/// Special tokens of other classes (ALBERT's [CLS] and [SEP]) and ids that a class moves (XLM-R's) are in no file. Such
/// folders need their tokenizer.json. decode() keeps bytes that are not UTF-8, for which sentencepiece writes U+FFFD.
/// Errors: throws Error("tokenizer", ...) for a file that SentencePieceFile::parse() refuses.
std::unique_ptr<Tokenizer> read_sentence_piece(const std::string& path);

}  // namespace colossal::text
