// The files of tokenizers: the kinds that are read, each in a unit of its own, and the files of a Hugging Face
// tokenizer as values. make_tokenizer() chooses the kind; gguf_vocabulary.h reads GGUF files.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"

namespace colossal::text {

/// Maximum bytes of a file of a tokenizer.
inline constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;

/// The argument of encode(): a whole text, or a part of one (make_part_tokenizer()).
enum class Scope : uint8_t { Text, Part };

/// Returns a tokenizer.json without the steps that treat the front and the end of a text: a space that a normalizer, a
/// Metaspace or a ByteLevel puts in front, and a Strip.
nlohmann::json for_parts(nlohmann::json tokenizer);

/// The contents of a tokenizer.json and of its tokenizer_config.json.
struct TokenizerFiles {
  nlohmann::json tokenizer, config;
};

/// Returns files whose tokenizer has the ids of ByteTokenizer: each byte is a token, and no merges join two. The end
/// has no bytes, so it is a special token, which readers of the files also find if a text spells it
/// (ByteTokenizer::kEndSpelling).
TokenizerFiles files_of_bytes();

/// Reads a tokenizer of Hugging Face. `path` is a tokenizer.json, BERT's vocab.txt, or a folder. In a folder the first
/// of these is read: tokenizer.json; vocab.json with merges.txt; vocab.txt.
///
/// A vocab.txt of letters (letters.h) makes a LetterTokenizer. Of the others:
///
/// Supported: the types that Normalizer, PreTokenizer, parse_model, PostProcessor, Decoder and AddedToken list.
///            Truncation and padding are ignored, because the code that makes batches does them.
/// Prompts:   encode_prompt() adds the post-processor's special tokens before a text. It omits those after the text,
///            because the model continues a prompt.
/// Tokens:    tokenizer_config.json next to the file names the end, begin and mask tokens. If it does not, they are
///            </s> or [SEP], <s>, [MASK] and the like. tokenizer_config.json and config.json next to a tokenizer.json
///            change ids as read_tokenizer_json() describes.
/// Errors:    throws Error("tokenizer", ...) naming the part that is not supported, and on any damaged file.
std::unique_ptr<Tokenizer> read_hugging_face_tokenizer(const std::string& path, Scope scope = Scope::Text);

/// Returns tokenizer_config.json of a folder, or an empty object. Of CLIP's class the tokens of special_tokens_map.json
/// replace those that it names, unless it has added_tokens_decoder, as in transformers 5.23. Errors: damaged files.
nlohmann::json read_tokenizer_config(const std::string& folder);

/// Creates the tokenizer from the contents of a tokenizer.json and its tokenizer_config.json; `name` appears in
/// messages.
std::unique_ptr<Tokenizer> make_hugging_face_tokenizer(const nlohmann::json& tokenizer, const nlohmann::json& config,
                                                       const std::string& name);

/// Reads SentencePiece's .model file without its library: unigram, BPE, word and char models with their normalizer's
/// character map, white space options, byte fallback, user-defined and control symbols.
///
/// encode() equals sentencepiece's Encode: the names of control symbols in a text are plain text. encode_prompt() adds
/// the begin token, if the model has one, before the text. encode_whole() also adds the end token after the text in two
/// cases: tokenizer_config.json next to the file has add_eos_token, or names T5's class of tokenizers, which always
/// adds it. add_bos_token = false in tokenizer_config.json drops the begin token.
///
/// Special tokens of other classes (ALBERT's [CLS] and [SEP]) and ids that a class moves (XLM-R's) are in no file. Such
/// folders need their tokenizer.json. decode() keeps bytes that are not UTF-8, for which sentencepiece writes U+FFFD.
/// Errors: throws Error("tokenizer", ...) for a file that SentencePieceFile::parse() refuses.
std::unique_ptr<Tokenizer> read_sentence_piece(const std::string& path, Scope scope = Scope::Text);

/// Reads tiktoken's rank file: each line has a token in base64 and its rank, which is its id. The file does not contain
/// the pattern that splits words or the special tokens. For gpt2, r50k_base, p50k_base, cl100k_base, o200k_base and
/// llama3 they follow from the file's name (with any extension). For other names they are read from `encoding.json`
/// next to the file: {"pattern": ..., "special_tokens": {"<|end|>": 100257}}. LLaMA 3's `tokenizer.model`, which is
/// also a rank file, is recognized by its 128000 ranks.
///
/// encode() converts special tokens in the text to their ids, as the other tokenizers of this layer do (tiktoken's
/// allowed_special="all").
/// Errors: throws Error("tokenizer", ...) with the damaged line. Also for duplicate ranks, a byte without a rank, a
/// token of more than 1024 bytes, and a file whose pattern is unknown.
std::unique_ptr<Tokenizer> read_tiktoken(const std::string& path);

/// Returns true if the bytes look like a rank file: the first line is base64, a space and a number.
bool looks_like_tiktoken(std::string_view bytes);

/// Returns the tokenizer.json that is equivalent to GPT-2's vocab.json and merges.txt in `folder`. `config` is its
/// tokenizer_config.json, from which add_prefix_space and the surrounding tokens are taken. RoBERTa's <s> and </s> are
/// added if tokenizer_class (else config.json's model_type) is of its family (roberta, bart, longformer, led, mvp). The
/// begin token is added if add_bos_token is true (OPT). CLIP's files (its tokenizer_class, or its two special tokens
/// without a class) become those of set_clip_sections().
/// See: models/gpt2/tokenization_gpt2.py and models/roberta/tokenization_roberta.py of transformers 5.23.
/// Errors: throws Error if the files cannot be read, or a surrounding token has no id.
nlohmann::json from_vocabulary_and_merges(const std::string& folder, const nlohmann::json& config);

/// Returns the tokenizer.json that is equivalent to BERT's vocab.txt, which has one token per line: WordPiece after
/// BERT's normalizer. Text becomes lower case unless `config`, its tokenizer_config.json, has do_lower_case = false.
/// tokenize_chinese_chars and strip_accents are applied too.
nlohmann::json from_vocabulary_text(const std::string& file, const nlohmann::json& config);

}  // namespace colossal::text
