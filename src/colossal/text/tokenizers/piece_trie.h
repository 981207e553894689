// A trie that finds all keys at the start of a text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace colossal::text {

/// A map from strings to non-negative values. Memory: about 64 bytes for each byte of a key that no other key shares.
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
