// Which of many strings start a text.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace colossal::text {

class PieceTrie {
 public:
  PieceTrie() : nodes_(1) {}
  /// `key` must not be empty. A key that is there takes the new value.
  void add(std::string_view key, int32_t value);
  /// Calls found(length, value) for each key that `text` starts with, the shortest first.
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
    std::vector<Edge> edges;  // by byte
  };
  int32_t child(int32_t node, unsigned char byte) const;
  std::vector<Node> nodes_;
};

}  // namespace colossal::text
