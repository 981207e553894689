// Vocabularies: the mapping between tokens and ids in both directions.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace colossal::text {

/// A hash that lets StringIds look up string views without a copy.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using StringIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

/// A list of tokens by id, with a look-up of ids by token.
class Vocabulary {
 public:
  static constexpr int64_t kMaxId = 1 << 24;
  /// Creates a vocabulary for about `tokens` tokens. Ids are at most 16 * `tokens` + 2^16, and at most kMaxId, so that
  /// a short file cannot make the table large.
  explicit Vocabulary(size_t tokens);
  /// Errors: throws Error("tokenizer", ...) for an id that is negative or too large.
  void add(const std::string& token, int64_t id);
  /// Returns the id of a token; -1 = none.
  int32_t id_of(std::string_view token) const;
  /// Returns the token with the id; empty if there is none.
  const std::string& token(int64_t id) const;
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }  ///< one more than the largest id
  const StringIds& ids() const { return ids_; }
  /// Returns the size in bytes of the longest token.
  size_t longest() const { return longest_; }

 private:
  StringIds ids_;
  std::vector<std::string> tokens_;
  size_t longest_ = 0;
  int64_t limit_;
};

/// The ids of the byte tokens <0x00>, ..., <0xFF>; -1 = the vocabulary has no such token.
struct ByteTokens {
  explicit ByteTokens(const Vocabulary& vocabulary);
  /// Appends the ids of the bytes of `text`. Returns false, and appends no id, if a byte has no token.
  bool append(std::string_view text, std::vector<int64_t>& ids) const;
  int32_t ids[256];
};

/// A model that turns a word into tokens: the model section of a tokenizer.json.
/// Thread safety: const members may be called from several threads.
class WordModel {
 public:
  explicit WordModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~WordModel() = default;
  /// Appends the ids of one word, which must not be empty.
  virtual void encode(std::string_view word, std::vector<int64_t>& ids) const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

}  // namespace colossal::text
