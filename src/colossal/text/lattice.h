// All ways to cut a word in pieces of a unigram model: what its training looks at.
//
//   Lattice lattice;
//   lattice.read("abc", pieces, scores, unknown);
//   std::vector<int32_t> best = lattice.best();       // ids of the pieces with the largest sum of scores
//   lattice.add_expected(count, expected);            // how often each piece is met, over all ways
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/text/piece_trie.h"

namespace colossal::text {

/// See: Kudo, arXiv:1804.10959. One object reads one word after another, so that its memory is taken once.
/// Thread safety: none.
class Lattice {
 public:
  /// A character that is no piece by itself.
  struct Unknown {
    int32_t id;
    double score;
  };
  /// Forgets what it read before. `scores` are by the ids that `pieces` has.
  /// Cost: O(n m) for n bytes and pieces of at most m.
  void read(std::string_view word, const PieceTrie& pieces, const std::vector<double>& scores, Unknown unknown);
  /// The ids of the best way, in order. `is_cut`: of the best one of more than one piece; none where there is no such
  /// way.
  std::vector<int32_t> best(bool is_cut = false) const;
  /// Adds to expected[id] how often the piece is met on average over all ways, each as probable as its scores say,
  /// `count` times. Returns the logarithm of the sum over all ways.
  double add_expected(double count, std::vector<double>& expected) const;

 private:
  struct Edge {
    int32_t id;
    uint32_t begin, end;  // bytes of the word
    double score;
  };
  size_t size_ = 0;          // of the word, in bytes
  std::vector<Edge> edges_;  // by begin
};

}  // namespace colossal::text
