// Text to token ids and back.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

/// Thread safety: const members may be called from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// The ids of `text` and nothing else: no begin or end token.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// As encode(), with the special tokens that a model expects around a prompt (LLaMA: the begin token first).
  virtual std::vector<int64_t> encode_prompt(std::string_view text) const { return encode(text); }
  /// The bytes that a token stands for within a text: perhaps half a UTF-8 character, empty for special tokens.
  /// Errors: an id outside the vocabulary.
  virtual std::string piece(int64_t id) const = 0;
  /// The text of `ids`. Not always valid UTF-8: the ids may end within a character.
  virtual std::string decode(const std::vector<int64_t>& ids) const;
  virtual int64_t vocabulary_size() const = 0;
  /// Closes a document; generation stops at it. -1: there is none.
  virtual int64_t end_id() const = 0;
  /// Opens a text for a model that wants it; -1: there is none.
  virtual int64_t begin_id() const { return -1; }
  /// Stands for a token that a model is to fill in; -1: there is none.
  virtual int64_t mask_id() const { return -1; }
};

/// "bytes", or the path of a Hugging Face folder or of its tokenizer.json.
/// Errors: anything else, or a file that cannot be read.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);

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
