// The interface of tokenizers, which turn text into token ids and token ids into text.
//
//   const auto tokenizer = text::make_tokenizer("models/gpt2");      // a Hugging Face folder
//   const std::vector<int64_t> ids = tokenizer->encode("To be");
//   const std::string text = tokenizer->decode(ids);                 // "To be"
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

/// Token ids of one text or of a pair of texts, in the form that a model takes as input.
struct Encoding {
  std::vector<int64_t> ids;
  std::vector<int64_t> types;  ///< index of the text that each token belongs to (0 or 1); BERT's token_type_ids
};

/// Token ids of one text, each with the place in the text where it begins.
struct PlacedTokens {
  std::vector<int64_t> ids;
  std::vector<size_t> begins;  ///< first byte of the text that a token stands for, in ascending order
};

/// A tokenizer with its vocabulary. make_tokenizer() creates one from a file or a folder.
/// Thread safety: const members may be called from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// Returns the ids of `text` alone, without a begin or end token.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Returns encode(text) with the special tokens that a model expects before a prompt (LLaMA: the begin token).
  virtual std::vector<int64_t> encode_prompt(std::string_view text) const { return encode(text); }
  /// Returns the ids of one text or of a pair with all special tokens that the tokenizer's files define for it (BERT:
  /// [CLS], [SEP]). SentencePiece and tiktoken files define no pairs. Each text of a pair then gets its own special
  /// tokens, as users of those packages join texts: <s> A </s> <s> B </s>.
  virtual Encoding encode_whole(std::string_view text) const;
  virtual Encoding encode_pair(std::string_view first, std::string_view second) const;
  /// Returns the bytes that a token stands for within a text. They may be a part of a UTF-8 character, and are empty
  /// for special tokens.
  /// Errors: an id outside the vocabulary.
  virtual std::string piece(int64_t id) const = 0;
  /// Returns the token as the vocabulary spells it; empty if no token has the id. Errors: an id outside the vocabulary.
  virtual std::string spelling(int64_t id) const { return piece(id); }
  /// Returns the text of `ids`. It is not valid UTF-8 if the ids end within a character or stand for bytes that are no
  /// character. Special tokens are left out unless `with_special` is true.
  virtual std::string decode(const std::vector<int64_t>& ids, bool with_special = false) const;
  virtual int64_t vocabulary_size() const = 0;
  /// Returns the id of the token that ends a document, at which generation stops; -1 = none.
  virtual int64_t end_id() const = 0;
  /// Returns the id of the token that opens a text, for models trained with one; -1 = none.
  virtual int64_t begin_id() const { return -1; }
  /// Returns the id of the token that marks a position for the model to fill in; -1 = none.
  virtual int64_t mask_id() const { return -1; }
  /// Returns encode(text), and where each token begins. If a normalizer changes the text, a token begins at the
  /// character of `text` (for normal forms the grapheme cluster) from which its first byte was made. A token that
  /// stands for no byte of `text`, such as the space that SentencePiece puts before it, begins where the next one does.
  /// A tokenizer that does not override it must have pieces that join to the text, as tokens of bytes do.
  virtual PlacedTokens encode_placed(std::string_view text) const;
  /// Returns the ids that a text has as a document of training data: encode(text) and the end token, if there is one. A
  /// tokenizer of a model that reads whole texts with a begin token puts it before them (ESM-2).
  virtual std::vector<int64_t> encode_document(std::string_view text) const;
};

/// Creates the tokenizer that `name` describes. `name` is one of:
/// - "bytes": the byte tokenizer, which needs no file.
/// - A folder. The first of these that it contains is read: tokenizer.json; tokenizer.model or spiece.model
/// (SentencePiece); vocab.json with merges.txt; vocab.txt (BERT, ESM-2).
/// - A file of one of these kinds, a file of tiktoken ranks, or a GGUF file.
///
/// Errors: any other name, or a file that cannot be read.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

/// Creates the tokenizer that `name` describes, for parts of a text. encode() puts no space in front of a part (no
/// dummy prefix) and drops none at its ends, so a piece from within a word stays one. Errors: as make_tokenizer().
std::unique_ptr<Tokenizer> make_part_tokenizer(const std::string& name);

/// Returns true if the folder contains a file that make_tokenizer() reads, or the GGUF file contains a vocabulary.
bool has_tokenizer(const std::string& folder);

/// Returns where the further files of the tokenizer `name` are, such as its chat template: the folder itself, the
/// folder of a file, or the GGUF file itself. Empty for "bytes".
std::string folder_of_tokenizer(const std::string& name);

/// Calls work(i) for each i < count on at most `threads` threads, the calling thread included. Each thread takes the
/// next index as soon as it is free. If the system refuses to start a thread, the threads that started do all the work.
/// Errors: rethrows what a call threw; if several calls threw, the exception of the smallest index. After the first
/// failure no further calls start.
void for_each_index(size_t count, int threads, const std::function<void(size_t)>& work);

/// Returns the ids of each text, equal to those of encode(), computed on at most `threads` threads.
std::vector<std::vector<int64_t>> encode_all(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts,
                                             int threads);

/// Returns a token for messages: "<|im_end|> (2)", or "token 256" if the vocabulary does not spell it or lacks the id.
std::string description_of(const Tokenizer& tokenizer, int64_t id);

/// Returns `bytes` with U+FFFD in place of each longest prefix that is not UTF-8, so that the result can be printed.
std::string valid_utf8(std::string_view bytes);

/// A converter from a stream of tokens to printable text. It never returns a part of a UTF-8 character. Bytes that
/// cannot be UTF-8 become U+FFFD. The tokenizer must outlive it.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// Adds a token and returns the text that it completes, which may be empty.
  std::string push(int64_t id);
  /// Returns the text that remains after the last token; an incomplete character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace colossal::text
