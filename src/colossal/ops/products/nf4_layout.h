// Places of the elements and blocks of an Nf4Weight; see nf4_weight.h.
//
//   const Nf4Places places(form);
//   const int64_t block = places.block(row, column);      // of the stored ones, which holds this element
#pragma once
#include <cstdint>

#include "colossal/ops/kernels.h"
#include "colossal/ops/products/nf4_weight.h"

namespace colossal::ops {

constexpr int64_t kNf4BlockBytes = kNf4Block / 2;
/// Number of codes of 8 bits, and of blocks whose absmax share a maximum.
constexpr int64_t kNf4NestedCodes = 256, kNf4NestedBlock = 256;

/// Rows and columns are those of the matrix as the folder stores it.
struct Nf4Places {
  explicit Nf4Places(const Nf4Form& form);

  /// Returns the index of an element in the flattened matrix of the folder.
  int64_t index(int64_t row, int64_t column) const { return first + row * stride + column; }
  /// Returns the stored block that holds an element.
  int64_t block(int64_t row, int64_t column) const { return index(row, column) / kNf4Block - base(row); }
  /// Returns the difference between the index of a block in the folder and that of the stored block, in a row.
  int64_t base(int64_t row) const { return pitch == 0 ? first / kNf4Block : index(row, 0) / kNf4Block - row * pitch; }

  int64_t first, stride;
  int64_t pitch = 0;             ///< blocks from row to row; 0 = rows follow one another as in the folder
  int64_t blocks;                ///< number of stored blocks
  int64_t nested_first, nested;  ///< index in the folder of the first maximum of absmax that is stored; their number
};

/// Returns a part of a weight in the orientation of the folder's matrix.
MatrixPart nf4_stored(const MatrixPart& part, bool transposed);

/// Returns how many blocks hold `count` elements of which the first has index `first` in the folder.
inline int64_t nf4_blocks_of(int64_t first, int64_t count) {
  return (first + count - 1) / kNf4Block - first / kNf4Block + 1;
}

}  // namespace colossal::ops
