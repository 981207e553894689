// Bodies of the products of channels; see ops/triangle.h. Channels are neighbours in memory, so the lanes of a vector
// are channels, and an element of the result is a chain of multiplications of vectors: no operand is transposed. A tile
// of rows and columns of the result remains in registers over a block of the depth. Operands are first packed in the
// computing type: the strides between their elements would be powers of two, which share few cache sets.
#pragma once
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int kSide = kVectorBytes == 64 ? 5 : 3;  // 25 accumulators in 32 registers, or 9 in 16
/// Rows that one thread packs together, and the depth of a block: the packed rows then take a part of the second cache.
constexpr int64_t kRowTiles = 16, kPackedRows = kRowTiles * kSide, kPackedDepth = 256;

/// Packs the vectors at `channel` of `count` rows (up to `room`, the others are zero), depth innermost but for a tile.
template <class T>
void pack_channels(const T* x, int64_t row, int64_t step, int64_t count, int64_t room, int64_t depth, int64_t left,
                   WideOf<T>* out) {
  using W = WideOf<T>;
  for (int64_t i = 0; i < room; ++i) {
    W* to = out + (i / kSide * depth * kSide + i % kSide) * kLanes<W>;
    const T* from = x + i * row;
    for (int64_t k = 0; k < depth; ++k, to += kSide * kLanes<W>, from += step) {
      if (i >= count)
        store(to, Vec<W>{}, Whole{});
      else if (left >= kLanes<W>)
        store(to, load(from, Whole{}), Whole{});
      else
        store(to, load(from, Tail{left}), Whole{});
    }
  }
}

/// Writes a tile of the result, or adds to it. `rows` and `columns` may be fewer than kSide.
template <class W, class Part>
void give_tile(const Vec<W> (&sums)[kSide][kSide], W* c, int64_t c_row, int64_t c_column, int64_t rows, int64_t columns,
               bool add, Part part) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      W* to = c + i * c_row + j * c_column;
      store(to, add ? load(to, part) + sums[i][j] : sums[i][j], part);
    }
}

template <class T>
void multiply_channel_tile(const WideOf<T>* a, const WideOf<T>* b, int64_t depth, WideOf<T>* c,
                           const ChannelProduct<T>& p, int64_t rows, int64_t columns, int64_t left, bool add) {
  using W = WideOf<T>;
  Vec<W> sums[kSide][kSide] = {};
  for (int64_t k = 0; k < depth; ++k, a += kSide * kLanes<W>, b += kSide * kLanes<W>) {
    Vec<W> right[kSide];
#pragma GCC unroll 5
    for (int j = 0; j < kSide; ++j) right[j] = load(b + j * kLanes<W>, Whole{});
#pragma GCC unroll 5
    for (int i = 0; i < kSide; ++i) {
      const Vec<W> value = load(a + i * kLanes<W>, Whole{});
#pragma GCC unroll 5
      for (int j = 0; j < kSide; ++j) sums[i][j] += value * right[j];
    }
  }
  if (left >= kLanes<W>)
    give_tile<W>(sums, c, p.c_row, p.c_column, rows, columns, add, Whole{});
  else
    give_tile<W>(sums, c, p.c_row, p.c_column, rows, columns, add, Tail{left});
}

template <class T>
int64_t channel_parts(const ChannelProduct<T>& p) {
  using W = WideOf<T>;
  return (p.channels + kLanes<W> - 1) / kLanes<W> * ((p.rows + kPackedRows - 1) / kPackedRows);
}

template <class T>
int64_t channel_scratch(const ChannelProduct<T>& p) {
  const int64_t depth = p.depth < kPackedDepth ? p.depth : kPackedDepth;
  return (kPackedRows + kSide) * depth * kLanes<WideOf<T>>;
}

/// A part is a vector of channels of a block of rows.
template <class T>
void multiply_channels(const ChannelProduct<T>& p, int64_t begin, int64_t end, WideOf<T>* scratch) {
  using W = WideOf<T>;
  const int64_t blocks = (p.rows + kPackedRows - 1) / kPackedRows;
  for (int64_t part = begin; part < end; ++part) {
    const int64_t channel = part / blocks * kLanes<W>, first = part % blocks * kPackedRows;
    const int64_t left = p.channels - channel;
    const int64_t rows = p.rows - first < kPackedRows ? p.rows - first : kPackedRows;
    const int64_t room = (rows + kSide - 1) / kSide * kSide;
    for (int64_t k = 0; k < p.depth; k += kPackedDepth) {
      const int64_t depth = p.depth - k < kPackedDepth ? p.depth - k : kPackedDepth;
      W* b = scratch + room * depth * kLanes<W>;
      pack_channels<T>(p.a + first * p.a_row + k * p.a_depth + channel, p.a_row, p.a_depth, rows, room, depth, left,
                       scratch);
      for (int64_t n = 0; n < p.columns; n += kSide) {
        const int64_t columns = p.columns - n < kSide ? p.columns - n : kSide;
        pack_channels<T>(p.b + n * p.b_column + k * p.b_depth + channel, p.b_column, p.b_depth, columns, kSide, depth,
                         left, b);
        for (int64_t m = 0; m < rows; m += kSide)
          multiply_channel_tile<T>(scratch + m * depth * kLanes<W>, b, depth,
                                   p.c + (first + m) * p.c_row + n * p.c_column + channel, p,
                                   rows - m < kSide ? rows - m : kSide, columns, left, k > 0);
      }
    }
  }
}

}  // namespace
}  // namespace colossal::ops
