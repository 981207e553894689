// Text to token ids and back.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

/// Tokens of one text or two as a model is given them.
struct Encoding {
  std::vector<int64_t> ids;
  std::vector<int64_t> types;  ///< of each token: which text it belongs to, as the tokenizer counts (0, 1)
};

/// Thread safety: const members may be called from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// The ids of `text` and nothing else: no begin or end token.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// As encode(), with the special tokens that a model expects around a prompt (LLaMA: the begin token first).
  virtual std::vector<int64_t> encode_prompt(std::string_view text) const { return encode(text); }
  /// As encode(), with all special tokens that the tokenizer's files put around one text or two (BERT: [CLS], [SEP]).
  /// Where files say nothing of two texts (SentencePiece, tiktoken) each has its own tokens around it, as the packages'
  /// users join them: <s> A </s> <s> B </s>.
  virtual Encoding encode_whole(std::string_view text) const;
  virtual Encoding encode_pair(std::string_view first, std::string_view second) const;
  /// The bytes that a token stands for within a text: perhaps half a UTF-8 character, empty for special tokens.
  /// Errors: an id outside the vocabulary.
  virtual std::string piece(int64_t id) const = 0;
  /// The token as the vocabulary spells it; empty where no token has the id. Errors: an id outside the vocabulary.
  virtual std::string spelling(int64_t id) const { return piece(id); }
  /// The text of `ids`. Not always valid UTF-8: the ids may end within a character, or stand for bytes that are none.
  /// Special tokens are shown only where `with_special` asks for them.
  virtual std::string decode(const std::vector<int64_t>& ids, bool with_special = false) const;
  virtual int64_t vocabulary_size() const = 0;
  /// Closes a document; generation stops at it. -1: there is none.
  virtual int64_t end_id() const = 0;
  /// Opens a text for a model that wants it; -1: there is none.
  virtual int64_t begin_id() const { return -1; }
  /// Stands for a token that a model is to fill in; -1: there is none.
  virtual int64_t mask_id() const { return -1; }
};

/// "bytes", or a path: a folder with tokenizer.json, else tokenizer.model or spiece.model (SentencePiece), else
/// vocab.json and merges.txt, else vocab.txt (BERT); or a file of one of these kinds, of tiktoken's ranks, or GGUF.
/// Errors: anything else, or a file that cannot be read.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

/// A folder holds one of the files that make_tokenizer() reads from a folder, or a GGUF file has a vocabulary.
bool has_tokenizer(const std::string& folder);

/// Calls work(i) for each i < count by at most `threads` threads, this one among them: calls go to whichever is free.
/// Where the machine gives fewer threads, those there are do all of it.
/// Errors: throws what a call threw, of several the first by its number; others are then not begun.
void for_each_index(size_t count, int threads, const std::function<void(size_t)>& work);

/// The ids of each text, as encode() gives them, by at most `threads` threads.
std::vector<std::vector<int64_t>> encode_all(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts,
                                             int threads);

/// `bytes` with U+FFFD for each longest prefix that cannot be UTF-8: what can be printed.
std::string valid_utf8(std::string_view bytes);

/// Token by token to text that can be printed: never half a UTF-8 character. Bytes that cannot be UTF-8 become U+FFFD.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// The text that became complete with this token, perhaps none.
  std::string push(int64_t id);
  /// What is left at the end of the ids; an incomplete character becomes U+FFFD.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace colossal::text
