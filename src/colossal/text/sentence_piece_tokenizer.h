// SentencePiece's .model files, read without its library.
#pragma once
#include <memory>
#include <string>

#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Reads a .model file: unigram, BPE, word and char, with their normalizer's character map, white space options, byte
/// fallback, user-defined and control symbols. encode() gives what sentencepiece's Encode does: the names of control
/// symbols in a text are plain text. encode_prompt() puts the begin token in front where there is one, encode_whole()
/// the end token behind where tokenizer_config.json beside the file says add_eos_token, or names T5's class of
/// tokenizers, which always does; add_bos_token = false there takes the first away. What other classes put around a
/// text (ALBERT's [CLS] and [SEP]) and ids that a class moves (XLM-R's) no file says: such folders need their
/// tokenizer.json. Decoding shows bytes that are not UTF-8 as they are, where sentencepiece writes U+FFFD.
/// Errors: throws Error("tokenizer", ...) for what SentencePieceFile::parse() refuses.
std::unique_ptr<Tokenizer> read_sentence_piece(const std::string& path);

}  // namespace colossal::text
