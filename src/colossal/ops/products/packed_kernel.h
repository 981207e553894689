// Small matrices in the computing type, and products of them by register tiles. ops/attention/attention_kernel.h is
// built on them.
#pragma once
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int kTileRows = 6;                              // 6 rows x 2 vectors: 12 accumulators in 16 registers
constexpr int kTileVectors = kVectorBytes == 64 ? 4 : 2;  // 6 rows x 4 vectors: 24 accumulators in 32 registers

/// Returns the row length of a packed matrix in elements: an odd number of whole cache lines. The elements of a column
/// then spread over all cache sets.
template <class W>
inline int64_t packed(int64_t columns) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(W));
  const int64_t lines = (columns + kLine - 1) / kLine;
  return (lines | 1) * kLine;
}

template <class W>
struct Matrix {
  W* data;
  int64_t row_stride, column_stride;
};

// C[M, V vectors] (+)= A[M, depth] B[depth, V vectors]; elements of A are broadcast, so it may be transposed.
template <class W, int M, int V>
inline void multiply_tile(const W* a, int64_t a_row, int64_t a_column, const W* b, int64_t b_row, W* c, int64_t c_row,
                          int64_t depth, bool add) {
  Vec<W> sums[M][V] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Vec<W> right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) right[v] = load(b + k * b_row + v * kLanes<W>, Whole{});
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i) {
      const W left = a[i * a_row + k * a_column];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sums[i][v] += left * right[v];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      W* out = c + i * c_row + v * kLanes<W>;
      store(out, add ? load(out, Whole{}) + sums[i][v] : sums[i][v], Whole{});
    }
}

template <class W, int V>
inline void multiply_rows(int64_t rows, const W* a, int64_t a_row, int64_t a_column, const W* b, int64_t b_row, W* c,
                          int64_t c_row, int64_t depth, bool add) {
  int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows)
    multiply_tile<W, kTileRows, V>(a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, depth, add);
  for (; i < rows; ++i)
    multiply_tile<W, 1, V>(a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, depth, add);
}

/// C[rows, columns] (+)= A[rows, depth] B[depth, columns]. Columns are computed in whole vectors, because packed rows
/// have room for them.
template <class W>
void multiply(int64_t rows, int64_t columns, int64_t depth, Matrix<const W> a, Matrix<const W> b, Matrix<W> c,
              bool add) {
  int64_t j = 0;
  for (; j + kTileVectors * kLanes<W> <= columns; j += kTileVectors * kLanes<W>)
    multiply_rows<W, kTileVectors>(rows, a.data, a.row_stride, a.column_stride, b.data + j, b.row_stride, c.data + j,
                                   c.row_stride, depth, add);
  for (; j < columns; j += kLanes<W>)
    multiply_rows<W, 1>(rows, a.data, a.row_stride, a.column_stride, b.data + j, b.row_stride, c.data + j, c.row_stride,
                        depth, add);
}

/// Copies rows [0, rows) of a head, times a factor, to packed rows. Elements after the last column become zero.
template <class T>
void pack(const T* x, int64_t stride, int64_t rows, int64_t columns, WideOf<T>* out, WideOf<T> factor = 1) {
  using W = WideOf<T>;
  const int64_t ld = packed<W>(columns);
  for (int64_t i = 0; i < rows; ++i) {
    W* line = out + i * ld;
    for (int64_t j = columns; j < ld; ++j) line[j] = 0;
    for_vectors<W>(columns,
                   [&](int64_t j, auto part) { store(line + j, load(x + i * stride + j, part) * factor, part); });
  }
}

/// Transposes packed rows to packed columns, which are `stride` elements apart. Elements after the last row become
/// zero.
template <class W>
void transpose(const W* in, int64_t rows, int64_t columns, int64_t stride, W* out) {
  const int64_t ld = packed<W>(columns);
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) out[j * stride + i] = in[i * ld + j];
    for (int64_t i = rows; i < stride; ++i) out[j * stride + i] = 0;
  }
}

/// Copies packed rows back to rows that are `stride` elements apart, times a factor.
template <class T>
void unpack(const WideOf<T>* x, int64_t rows, int64_t columns, T* out, int64_t stride, WideOf<T> factor = 1) {
  using W = WideOf<T>;
  for (int64_t i = 0; i < rows; ++i)
    for_vectors<W>(columns, [&](int64_t j, auto part) {
      store(out + i * stride + j, load(x + i * packed<W>(columns) + j, part) * factor, part);
    });
}

}  // namespace
}  // namespace colossal::ops
