// Body of the products of blocks of matrices; see BlockProduct in ops/kernels.h. A panel of B, as wide as a register
// tile, is copied to scratch memory in the order in which the tiles read it; transposed operands are transposed there.
#pragma once
#include "colossal/ops/products/packed_kernel.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

template <class W>
constexpr int64_t kPanelColumns = kTileVectors * kLanes<W>;

// Transposes a square of vectors in place, in log2(lanes) steps that exchange ever larger squares.
template <class W>
inline __attribute__((always_inline)) void transpose_square(Vec<W>* rows) {
  constexpr int kSize = kLanes<W>;
  using Lanes = typename Simd<W>::Integers;
  Lanes lane;
  for (int i = 0; i < kSize; ++i) lane[i] = i;
#pragma GCC unroll 4
  for (int step = 1; step < kSize; step *= 2) {
    // Lanes from kSize on mean the second operand.
    const Lanes low = (lane & step) ? lane - step + kSize : lane;
    const Lanes high = (lane & step) ? lane + kSize : lane + step;
#pragma GCC unroll 16
    for (int i = 0; i < kSize; ++i) {
      if (i & step) continue;
      const Vec<W> first = rows[i], second = rows[i + step];
      rows[i] = __builtin_shuffle(first, second, low);
      rows[i + step] = __builtin_shuffle(first, second, high);
    }
  }
}

// Copies `count` <= lanes columns of a transposed operand, `stride` elements apart, to rows of the panel.
template <class T>
inline void pack_transposed(const T* b, int64_t stride, int64_t count, int64_t depth, WideOf<T>* panel) {
  using W = WideOf<T>;
  for_vectors<W>(depth, [&](int64_t k, auto part) __attribute__((always_inline)) {
    Vec<W> square[kLanes<W>];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes<W>; ++j) square[j] = j < count ? load(b + j * stride + k, part) : Vec<W>{};
    transpose_square<W>(square);
    const int64_t rows = depth - k < kLanes<W> ? depth - k : kLanes<W>;
    for (int64_t i = 0; i < rows; ++i) store(panel + (k + i) * kPanelColumns<W>, square[i], Whole{});
  });
}

// Copies columns [0, columns) of `depth` rows of B, at most a panel. Columns up to the next whole vector become zero.
template <class T>
void pack_panel(const T* b, int64_t b_row, int64_t b_column, int64_t columns, int64_t depth, WideOf<T>* panel) {
  using W = WideOf<T>;
  if (b_column != 1) {
    for (int64_t j = 0; j < columns; j += kLanes<W>)
      pack_transposed(b + j * b_column, b_column, columns - j < kLanes<W> ? columns - j : kLanes<W>, depth, panel + j);
    return;
  }
  for (int64_t k = 0; k < depth; ++k)
    for_vectors<W>(columns, [&](int64_t j, auto part) {
      store(panel + k * kPanelColumns<W> + j, load(b + k * b_row + j, part), Whole{});
    });
}

/// Loads the elements of the next panel into the cache while tiles are multiplied, some lines at a time. A stack of
/// matrices is read from memory once, which takes a third as long as small groups take to multiply.
class Prefetch {
 public:
  /// `rows` runs of `bytes`, `stride` bytes apart, in `steps` steps.
  Prefetch(const void* data, int64_t rows, int64_t stride, int64_t bytes, int64_t steps)
      : row_(static_cast<const char*>(data)), rows_(data ? rows : 0), stride_(stride), bytes_(bytes) {
    if (steps > 0) lines_of_step_ = (rows * ((bytes + kLine - 1) / kLine) + steps - 1) / steps;
  }
  void step() {
    for (int64_t i = 0; i < lines_of_step_ && rows_ > 0; ++i) {
      __builtin_prefetch(row_ + byte_, 0, 2);
      if ((byte_ += kLine) < bytes_) continue;
      byte_ = 0, row_ += stride_, --rows_;
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const char* row_;
  int64_t rows_, stride_, bytes_, lines_of_step_ = 0, byte_ = 0;
};
constexpr int64_t kPrefetchDepth = 32;  // steps of a tile between two calls of Prefetch::step()

/// Operands of the register tiles of one panel. `start` is what the sums begin with; null = zeros.
template <class W>
struct PanelTiles {
  int64_t rows, depth;
  const W* a;
  int64_t a_row, a_column;
  const W* panel;
  const W* start;
  int64_t start_row;
  W* out;
  int64_t out_row;
  Prefetch* next;
};

template <class W, int M, int V, class Part>
inline __attribute__((always_inline)) void block_tile(const PanelTiles<W>& p, int64_t row, int64_t column, Part part) {
  Vec<W> sums[M][V];
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v)
      sums[i][v] = p.start ? load(p.start + (row + i) * p.start_row + column + v * kLanes<W>, part) : Vec<W>{};
  const W* a = p.a + row * p.a_row;
  const W* b = p.panel + column;
  for (int64_t from = 0; from < p.depth; from += kPrefetchDepth) {
    p.next->step();
    const int64_t to = from + kPrefetchDepth < p.depth ? from + kPrefetchDepth : p.depth;
    for (int64_t k = from; k < to; ++k) {
      Vec<W> right[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) right[v] = load(b + k * kPanelColumns<W> + v * kLanes<W>, Whole{});
#pragma GCC unroll 6
      for (int i = 0; i < M; ++i) {
        const W left = a[i * p.a_row + k * p.a_column];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[i][v] += left * right[v];
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(p.out + (row + i) * p.out_row + column + v * kLanes<W>, sums[i][v], part);
}

template <class W, int V, class Part>
void block_tiles(const PanelTiles<W>& p, int64_t column, Part part) {
  int64_t row = 0;
  for (; row + kTileRows <= p.rows; row += kTileRows) block_tile<W, kTileRows, V>(p, row, column, part);
  switch (p.rows - row) {
    case 5:
      return block_tile<W, 5, V>(p, row, column, part);
    case 4:
      return block_tile<W, 4, V>(p, row, column, part);
    case 3:
      return block_tile<W, 3, V>(p, row, column, part);
    case 2:
      return block_tile<W, 2, V>(p, row, column, part);
    case 1:
      return block_tile<W, 1, V>(p, row, column, part);
    default:
      return;
  }
}

template <class W>
void multiply_panel(const PanelTiles<W>& p, int64_t columns) {
  if (columns == kPanelColumns<W>) return block_tiles<W, kTileVectors>(p, 0, Whole{});
  for_vectors<W>(columns, [&](int64_t column, auto part) { block_tiles<W, 1>(p, column, part); });
}

/// Place of a panel in an operand.
struct PanelPlace {
  int64_t column, columns, k, depth;
};
template <class T>
inline PanelPlace panel_at(const BlockProduct<T>& p, int64_t column, int64_t k) {
  constexpr int64_t kColumns = kPanelColumns<WideOf<T>>;
  return {column, p.columns - column < kColumns ? p.columns - column : kColumns, k,
          p.depth - k < kBlockDepth ? p.depth - k : kBlockDepth};
}

// Prepares to load the panel after `now`, of this block or the next one, during the products of `now`.
template <class T>
inline Prefetch prefetch_after(const BlockProduct<T>& p, const PanelPlace& now) {
  const T* b = p.b;
  PanelPlace next{};
  if (now.k + kBlockDepth < p.depth)
    next = panel_at(p, now.column, now.k + kBlockDepth);
  else if (now.column + now.columns < p.columns)
    next = panel_at(p, now.column + now.columns, 0);
  else
    next = panel_at(p, 0, 0), b = p.next_b;
  if (b) b += next.column * p.b_column + next.k * p.b_row;
  const int64_t steps = (p.rows + kTileRows - 1) / kTileRows * ((now.depth + kPrefetchDepth - 1) / kPrefetchDepth);
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  if (p.b_column == 1) return {b, next.depth, p.b_row * kSize, next.columns * kSize, steps};
  return {b, next.columns, p.b_column * kSize, next.depth * kSize, steps};
}

template <class T>
void multiply_block(const BlockProduct<T>& p, WideOf<T>* scratch) {
  using W = WideOf<T>;
  W *const panel = scratch, *const sums = scratch + kBlockDepth * kPanelColumns<W>;
  for (int64_t column = 0; column < p.columns; column += kPanelColumns<W>) {
    const int64_t columns = panel_at(p, column, 0).columns;
    W* out = p.wide ? p.wide + column : sums;
    const int64_t out_row = p.wide ? p.c_row : kPanelColumns<W>;
    for (int64_t k = 0; k < p.depth || k == 0; k += kBlockDepth) {
      const PanelPlace now = panel_at(p, column, k);
      pack_panel(p.b + column * p.b_column + k * p.b_row, p.b_row, p.b_column, columns, now.depth, panel);
      Prefetch next = prefetch_after(p, now);
      PanelTiles<W> tiles{p.rows,  now.depth, p.a + k * p.a_column, p.a_row, p.a_column, panel, out, out_row, out,
                          out_row, &next};
      if (k == 0 && !(p.add && p.wide)) {
        tiles.start = p.bias ? p.bias + column : nullptr;
        tiles.start_row = 0;
      }
      multiply_panel(tiles, columns);
    }
    if (p.wide) continue;
    for (int64_t i = 0; i < p.rows; ++i)
      for_vectors<W>(columns, [&](int64_t j, auto part) {
        T* c = p.narrow + i * p.c_row + column + j;
        const Vec<W> sum = load(sums + i * kPanelColumns<W> + j, Whole{});
        store(c, p.add ? load(c, part) + sum : sum, part);
      });
  }
}

// Body of products with few columns; see DotProducts in ops/kernels.h.

template <class T>
void dot_products(const DotProducts<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = a.x + row * a.depth;
    for (int64_t column = 0; column < a.columns; ++column) {
      const T* w = a.w + column * a.depth;
      Vec<W> sums[4]{};  // chains, so that additions do not wait for one another
      for_chains<W, 4>(a.depth, [&](int64_t i, int chain, auto part) __attribute__((always_inline)) {
        sums[chain] += load(x + i, part) * load(w + i, part);
      });
      a.y[row * a.columns + column] = sum_of<W>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
  }
}

}  // namespace

}  // namespace colossal::ops
