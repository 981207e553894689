#include "colossal/text/tokenizers/piece_trie.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::text {

int32_t PieceTrie::child(int32_t node, unsigned char byte) const {
  const std::vector<Edge>& edges = nodes_[node].edges;
  const auto found = std::lower_bound(edges.begin(), edges.end(), byte,
                                      [](const Edge& edge, unsigned char b) { return edge.byte < b; });
  return found == edges.end() || found->byte != byte ? -1 : found->node;
}

void PieceTrie::add(std::string_view key, int32_t value) {
  int32_t node = 0;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      require(nodes_.size() < max_nodes_, "tokenizer",
              "the pieces of the vocabulary are too long: a tree of them must have ", "at most ", max_nodes_, " nodes");
      next = static_cast<int32_t>(nodes_.size());
      nodes_.emplace_back();
      std::vector<Edge>& edges = nodes_[node].edges;
      edges.insert(std::lower_bound(edges.begin(), edges.end(), byte,
                                    [](const Edge& edge, unsigned char b) { return edge.byte < b; }),
                   {byte, next});
    }
    node = next;
  }
  nodes_[node].value = value;
}

}  // namespace colossal::text
