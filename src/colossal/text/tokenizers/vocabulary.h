// Vocabularies: the mapping between tokens and ids in both directions, and the tokens at the start of a text.
#pragma once
#include <cstddef>
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

/// Returns the spelling of the token of a byte, in [0, 255]: "<0x0A>".
std::string byte_token(int byte);

/// The ids of the byte tokens <0x00>, ..., <0xFF>; -1 = the vocabulary has no such token.
struct ByteTokens {
  explicit ByteTokens(const Vocabulary& vocabulary);
  /// Appends the ids of the bytes of `text`. Returns false, and appends no id, if a byte has no token.
  bool append(std::string_view text, std::vector<int64_t>& ids) const;
  /// Returns the byte of a byte token; -1 = the id is not one.
  int byte_of(int64_t id) const;
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
  /// Returns the place in `word` at which each token begins. `ids` are those that encode() appends for it. Characters
  /// that have no token, or share an unknown one, belong to no other token.
  std::vector<size_t> places(std::string_view word, const int64_t* ids, size_t count) const;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  /// Returns the bytes that a token stands for at the beginning, within or at the end of a word; "" = an unknown
  /// number.
  virtual std::string part_of_word(int64_t id, bool is_first, bool is_last) const = 0;
  Vocabulary vocabulary_;
};

/// A map from strings to non-negative values, which finds all keys at the start of a text. Memory: about 64 bytes for
/// each byte of a key that no other key shares.
class PieceTrie {
 public:
  /// Creates a trie of at most `nodes` nodes: a vocabulary of 250,000 tokens needs a tenth of the default.
  explicit PieceTrie(size_t nodes = size_t{1} << 24) : nodes_(1), max_nodes_(nodes) {}
  /// Adds a key, which must not be empty, or replaces the value of an existing key.
  /// Errors: throws Error("tokenizer", ...) if the trie would exceed its number of nodes.
  void add(std::string_view key, int32_t value);
  /// Calls found(length, value) for each key at the start of `text`, the shortest first.
  template <class Found>
  void prefixes(std::string_view text, const Found& found) const {
    int32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node < 0) return;
      if (nodes_[node].value >= 0) found(i + 1, nodes_[node].value);
    }
  }

 private:
  struct Edge {
    unsigned char byte;
    int32_t node;
  };
  struct Node {
    int32_t value = -1;
    std::vector<Edge> edges;  // sorted by byte
  };
  int32_t child(int32_t node, unsigned char byte) const;
  std::vector<Node> nodes_;
  size_t max_nodes_;
};

}  // namespace colossal::text
