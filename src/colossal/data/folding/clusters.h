// Clusters of the rows of an alignment: which row is nearest to which, and what the rows of a cluster have in common.
//
//   const data::LetterRows letters = data::letter_rows(alignment);
//   const std::vector<int64_t> rest{2, 3, 4};
//   const std::vector<int32_t> nearest = data::nearest_clusters(letters.taken({0, 1}), letters, rest);
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "colossal/protein/alignment.h"

namespace colossal::data {

inline constexpr int64_t kLetterTypes = 23;  ///< the 20 types, X, gap and mask (protein/residues.h)

/// The letters of rows as types, row after row.
struct LetterRows {
  int64_t columns = 0;
  std::vector<uint8_t> types;  ///< [row, column]

  int64_t rows() const { return columns == 0 ? 0 : static_cast<int64_t>(types.size()) / columns; }
  const uint8_t* row(int64_t index) const { return types.data() + index * columns; }
  uint8_t* row(int64_t index) { return types.data() + index * columns; }
  /// Returns these rows alone, in this order: a copy.
  LetterRows taken(std::span<const int64_t> indices) const;
  LetterRows taken(std::initializer_list<int64_t> indices) const {
    return taken(std::span(indices.begin(), indices.size()));
  }
};

/// Returns the letters of all rows of an alignment.
LetterRows letter_rows(const protein::Alignment& alignment);

/// Returns for each of `rows` of `letters` the center with the most equal letters, the first of equally near ones. Gaps
/// and masks are equal to nothing (Jumper et al. 2021, supplement 1.2.7).
/// Cost: a comparison of bytes for each row, center and column, 16 at a time; the bytes of both in memory once more.
/// Errors ("features"): no center; another number of columns.
std::vector<int32_t> nearest_clusters(const LetterRows& centers, const LetterRows& letters,
                                      std::span<const int64_t> rows);

/// A range of columns: [first, first + size).
struct ColumnRange {
  int64_t first = 0, size = 0;
};

/// Sums over the rows of each cluster, its center included.
struct ClusterSums {
  std::vector<int32_t> members;    ///< [center] number of rows
  std::vector<int32_t> letters;    ///< [center, column of the range, kLetterTypes] rows with that letter there
  std::vector<int64_t> deletions;  ///< [center, column of the range]
};

/// Rows and the clusters to which they belong.
struct ClusteredRows {
  std::span<const int64_t> centers;  ///< row of the alignment that each center is
  std::span<const int64_t> others;
  std::span<const int32_t> nearest;  ///< of `others`
};

/// Returns the sums in some columns. `center_letters` are those of the centers, which may be masked; the letters of
/// other rows are those of `letters`. Cost: O(rows x columns).
ClusterSums sum_clusters(const LetterRows& center_letters, const LetterRows& letters,
                         const protein::Alignment& alignment, const ClusteredRows& rows, const ColumnRange& range);

}  // namespace colossal::data
