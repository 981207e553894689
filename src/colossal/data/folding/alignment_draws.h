// The draws of a pass from the rows of an alignment: which rows remain, in which order, and which letters are masked.
// All are functions of a seed and of the numbers of rows and columns in the alignment, so that neither the number of
// clusters nor a crop changes them.
//
//   const uint64_t seed = data::pass_seed(3, "6kwc", pass);
//   const std::vector<int64_t> rows = data::drawn_rows(alignment_rows, {.blocks = 5, .share = .3}, seed);
//   const data::MaskedRows centers = data::masked_rows(letters, std::span(rows).first(128), profile, .15, seed);
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "colossal/data/folding/clusters.h"

namespace colossal::data {

/// Returns the seed of a pass over a chain, from which everything that differs between passes is drawn.
uint64_t pass_seed(uint64_t seed, std::string_view chain, int64_t pass);

/// Blocks of neighbouring rows that are left out in training (Jumper et al. 2021, supplement, algorithm 1).
struct BlockDeletion {
  int64_t blocks = 0;  ///< number of blocks, which may overlap; 0 = all rows remain
  double share = 0;    ///< rows of a block, as a share of all rows
};

/// Returns the rows that remain of `rows`, in a drawn order. The first is row 0, the query, which always remains.
std::vector<int64_t> drawn_rows(int64_t rows, const BlockDeletion& deletion, uint64_t seed);

/// Returns `count` things from 0 to count - 1 in a drawn order.
std::vector<int64_t> drawn_order(int64_t count, uint64_t seed);

/// Returns the number of rows with each letter in each column: [column, kLetterTypes].
std::vector<int32_t> letter_counts(const LetterRows& letters);

/// Rows of which some letters are replaced.
struct MaskedRows {
  LetterRows letters;              ///< after the replacement
  std::vector<uint8_t> is_masked;  ///< [row, column] 1 = the place was drawn, also if its letter remains
};

/// Draws the share `share` of the places of some rows. Of these 70 % become masks, 10 % remain, 10 % become a letter or
/// gap of that column by `counts`, which letter_counts() returned, and 10 % one of the 20 types.
MaskedRows masked_rows(const LetterRows& letters, std::span<const int64_t> rows, const std::vector<int32_t>& counts,
                       double share, uint64_t seed);

}  // namespace colossal::data
