// All segmentations of a word into pieces of a unigram model. Training the model (unigram_trainer.h) examines them.
//
//   Lattice lattice;
//   lattice.read("abc", pieces, scores, unknown);
//   std::vector<int32_t> best = lattice.best();       // ids of the pieces with the largest sum of scores
//   lattice.add_expected(count, expected);            // how often each piece is met, over all ways
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "colossal/text/tokenizers/vocabulary.h"

namespace colossal::text {

/// A lattice of the segmentations of one word. One object reads word after word, so that it allocates its memory only
/// once.
/// See: Kudo, arXiv:1804.10959.
/// Thread safety: none.
class Lattice {
 public:
  /// The piece that stands for each character that is not a piece by itself, and its score.
  struct Unknown {
    int32_t id;
    double score;
  };
  /// Replaces the word and its segmentations. `scores[id]` is the natural logarithm of the probability of the piece
  /// with this id in `pieces`. The arguments need not outlive the call.
  /// Cost: O(n m) for n bytes and pieces of at most m bytes.
  void read(std::string_view word, const PieceTrie& pieces, const std::vector<double>& scores, Unknown unknown);
  /// Returns the ids of the segmentation with the largest sum of scores, in the order of the word. If `is_cut` is true,
  /// only segmentations into more than one piece are considered; the result is empty if there is none.
  std::vector<int32_t> best(bool is_cut = false) const;
  /// Adds to expected[id] the mean number of occurrences of each piece over all segmentations, times `count`. The
  /// weight of a segmentation is exp(sum of its scores). `expected` must have an element for each id. Returns the
  /// natural logarithm of the sum of all weights.
  double add_expected(double count, std::vector<double>& expected) const;

 private:
  struct Edge {
    int32_t id;
    uint32_t begin, end;  // range of bytes in the word
    double score;
  };
  size_t size_ = 0;          // number of bytes of the word
  std::vector<Edge> edges_;  // sorted by begin
};

}  // namespace colossal::text
