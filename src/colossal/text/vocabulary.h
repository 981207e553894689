// Tokens and their ids, both ways.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace colossal::text {

/// Strings to ids, looked up by views.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using StringIds = std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>>;

class Vocabulary {
 public:
  static constexpr int64_t kMaxId = 1 << 24;
  /// For about `tokens` tokens: so that a short file cannot ask for a large table, ids end at 16 times as many and 2^16
  /// more, or at kMaxId.
  explicit Vocabulary(size_t tokens);
  /// Errors: throws Error("tokenizer", ...) for an id that is negative or too large.
  void add(const std::string& token, int64_t id);
  /// -1: none.
  int32_t id_of(std::string_view token) const;
  /// Empty where no token has the id.
  const std::string& token(int64_t id) const;
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }  ///< one more than the largest id
  const StringIds& ids() const { return ids_; }
  /// Bytes of the longest token.
  size_t longest() const { return longest_; }

 private:
  StringIds ids_;
  std::vector<std::string> tokens_;
  size_t longest_ = 0;
  int64_t limit_;
};

/// The ids of the tokens <0x00>, ..., <0xFF>, which stand for bytes; -1 where there is none.
struct ByteTokens {
  explicit ByteTokens(const Vocabulary& vocabulary);
  /// Appends the ids of the bytes of `text` if each has one; false: some has none, and nothing is appended.
  bool append(std::string_view text, std::vector<int64_t>& ids) const;
  int32_t ids[256];
};

/// Words to tokens: the model section of a tokenizer.json.
/// Thread safety: const members may be called from several threads.
class WordModel {
 public:
  explicit WordModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~WordModel() = default;
  /// Appends the ids of one word, which is not empty.
  virtual void encode(std::string_view word, std::vector<int64_t>& ids) const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

}  // namespace colossal::text
