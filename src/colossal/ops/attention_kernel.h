// Bodies of the attention kernels; see kernels.h. A head is taken in blocks of queries: the scores of a block against
// the run of keys that its queries see between them are one small product, so what a causal mask, a window or the
// borders of documents rule out for all of them is never computed, and rows of scores stay in the cache from product to
// softmax to product. Operands are first packed into the computing type.
#pragma once
#include "colossal/ops/rows_kernel.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int kTileRows = 6;                              // with two vectors: 12 accumulators of 16 registers
constexpr int kTileVectors = kVectorBytes == 64 ? 4 : 2;  // with four: 24 of 32
constexpr int64_t kQueryBlock = 5 * kTileRows;

/// Row length of a packed matrix: whole cache lines, an odd number of them, so that a column walks through all cache
/// sets.
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

/// C[rows, columns] (+)= A[rows, depth] B[depth, columns]. Columns are computed in whole vectors: packed rows have the
/// room.
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

/// Rows [0, rows) of a head into packed rows, zero behind the last column.
template <class T>
void pack(const T* x, int64_t stride, int64_t rows, int64_t columns, WideOf<T>* out) {
  using W = WideOf<T>;
  const int64_t ld = packed<W>(columns);
  for (int64_t i = 0; i < rows; ++i) {
    W* line = out + i * ld;
    for (int64_t j = columns; j < ld; ++j) line[j] = 0;
    for_vectors<W>(columns, [&](int64_t j, auto part) { store(line + j, load(x + i * stride + j, part), part); });
  }
}

template <class W>
void transpose(const W* in, int64_t rows, int64_t columns, W* out) {
  const int64_t in_ld = packed<W>(columns), out_ld = packed<W>(rows);
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) out[j * out_ld + i] = in[i * in_ld + j];
    for (int64_t i = rows; i < out_ld; ++i) out[j * out_ld + i] = 0;
  }
}

template <class T>
void unpack(const WideOf<T>* x, int64_t rows, int64_t columns, T* out, int64_t stride) {
  using W = WideOf<T>;
  for (int64_t i = 0; i < rows; ++i)
    for_vectors<W>(columns, [&](int64_t j, auto part) {
      store(out + i * stride + j, load(x + i * packed<W>(columns) + j, part), part);
    });
}

template <class T>
T* at_head(const HeadView<T>& x, int64_t batch, int64_t head) {
  return x.data + batch * x.batch + head * x.head;
}

/// The run of keys that a block of queries sees between them. It starts at a whole cache line of packed keys.
struct KeyRun {
  int64_t first, count;
  /// A key's place in the run; where it lies outside, the nearer end.
  int64_t at(int64_t key) const { return key < first ? 0 : key - first < count ? key - first : count; }
};

template <class T>
KeyRun keys_of_block(const AttentionTask<T>& a, int64_t batch, int64_t first, int64_t rows) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(WideOf<T>));
  const int64_t *from = a.from + batch * a.mask_stride + first, *to = a.to + batch * a.mask_stride + first;
  int64_t lowest = a.keys, highest = 0;
  for (int64_t i = 0; i < rows; ++i) {
    if (from[i] == to[i]) continue;  // sees nothing
    lowest = from[i] < lowest ? from[i] : lowest;
    highest = to[i] > highest ? to[i] : highest;
  }
  if (highest == 0) return {0, 0};
  lowest = lowest / kLine * kLine;
  return {lowest, highest - lowest};
}

/// x = cap tanh(x / cap), and in `slopes`, unless null, what that makes of a small change of x.
template <class W>
void cap_scores(W* x, W* slopes, int64_t n, W cap) {
  const W inverse = 1 / cap;
  for_vectors<W>(n, [&](int64_t j, auto part) {
    const Vec<W> t = tanh_of<W>(load(x + j, part) * inverse);
    store(x + j, t * cap, part);
    if (slopes) store(slopes + j, W(1) - t * t, part);
  });
}

/// x += slope * (0, 1, 2, ...) + at_first.
template <class W>
void add_ramp(W* x, int64_t n, W at_first, W slope) {
  Vec<W> steps;
  for (int lane = 0; lane < kLanes<W>; ++lane) steps[lane] = static_cast<W>(lane);
  for_vectors<W>(n, [&](int64_t j, auto part) {
    store(x + j, load(x + j, part) + ((steps + static_cast<W>(j)) * slope + at_first), part);
  });
}

/// A block of queries of one head.
struct QueryBlock {
  int64_t batch, head, first, rows;
};

/// scores[rows, run.count] of the keys of `run`, with -infinity where a query may not look. `slopes`, unless null: the
/// derivative of the cap, where a query may look.
template <class T>
void masked_scores(const AttentionTask<T>& a, const QueryBlock& block, const KeyRun& run, const WideOf<T>* q,
                   const WideOf<T>* kt, WideOf<T>* scores, WideOf<T>* slopes) {
  using W = WideOf<T>;
  const int64_t ld = packed<W>(a.keys), q_ld = packed<W>(a.size), query = block.batch * a.mask_stride + block.first;
  multiply<W>(block.rows, run.count, a.size, {q, q_ld, 1}, {kt + run.first, ld, 1}, {scores, ld, 1}, false);
  const W hidden = -static_cast<W>(__builtin_inf());
  for (int64_t i = 0; i < block.rows; ++i) {
    W* row = scores + i * ld;
    const int64_t from = run.at(a.from[query + i]), to = run.at(a.to[query + i]);
    row_scale(row + from, to - from, a.scale);
    if (a.soft_cap != 0) cap_scores<W>(row + from, slopes ? slopes + i * ld + from : nullptr, to - from, a.soft_cap);
    const int64_t position = a.position[query + i];
    if (a.alibi) {
      const W slope = static_cast<W>(a.alibi[block.head]);
      add_ramp<W>(row + from, to - from, slope * static_cast<W>(run.first + from - position), slope);
    }
    for (int64_t j = 0; j < from; ++j) row[j] = hidden;
    for (int64_t j = to; j < run.count; ++j) row[j] = hidden;
    if (!a.documents) continue;
    const int64_t* documents = a.documents + block.batch * a.keys;
    const int64_t own =
        a.query_documents ? a.query_documents[block.batch * a.queries + block.first + i] : documents[position];
    for (int64_t j = from; j < to; ++j)
      if (documents[run.first + j] != own) row[j] = hidden;
  }
}

template <class T>
int64_t attention_scratch(const AttentionTask<T>& a) {
  using W = WideOf<T>;
  const int64_t by_size = packed<W>(a.size), by_keys = packed<W>(a.keys);
  return 4 * a.keys * by_size + 2 * a.size * by_keys +
         kQueryBlock * (4 * by_size + (a.soft_cap != 0 ? 3 : 2) * by_keys);
}

/// Heads [begin, end) of batch * heads. `scratch`: attention_scratch elements, aligned to a cache line.
template <class T>
void attention_forward(const AttentionTask<T>& a, int64_t begin, int64_t end, WideOf<T>* scratch) {
  using W = WideOf<T>;
  const int64_t by_size = packed<W>(a.size), by_keys = packed<W>(a.keys);
  W *k = scratch, *v = k + a.keys * by_size, *kt = v + a.keys * by_size, *q = kt + a.size * by_keys;
  W *scores = q + kQueryBlock * by_size, *out = scores + kQueryBlock * by_keys;
  int64_t packed_head = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / a.heads, head = item % a.heads, kv_head = head / (a.heads / a.kv_heads);
    if (batch * a.kv_heads + kv_head != packed_head) {
      packed_head = batch * a.kv_heads + kv_head;
      pack(at_head(a.k, batch, kv_head), a.k.position, a.keys, a.size, k);
      pack(at_head(a.v, batch, kv_head), a.v.position, a.keys, a.size, v);
      transpose(k, a.keys, a.size, kt);
    }
    for (int64_t first = 0; first < a.queries; first += kQueryBlock) {
      const int64_t rows = a.queries - first < kQueryBlock ? a.queries - first : kQueryBlock;
      const KeyRun run = keys_of_block(a, batch, first, rows);
      pack(at_head(a.q, batch, head) + first * a.q.position, a.q.position, rows, a.size, q);
      masked_scores<T>(a, {batch, head, first, rows}, run, q, kt, scores, nullptr);
      W inverse_sums[kQueryBlock];
      for (int64_t i = 0; i < rows; ++i) {
        W* row = scores + i * by_keys;
        const W largest = row_max(row, run.count);
        const bool sees = largest > -static_cast<W>(__builtin_inf());
        const W sum = row_exp(row, run.count, sees ? largest : 0);
        inverse_sums[i] = sees ? 1 / sum : 0;
        // Of a query that sees nothing infinity: backward makes weights of 0 by it.
        a.log_sums[item * a.queries + first + i] =
            sees ? largest + static_cast<W>(__builtin_log(static_cast<double>(sum))) : static_cast<W>(__builtin_inf());
      }
      multiply<W>(rows, a.size, run.count, {scores, by_keys, 1}, {v + run.first * by_size, by_size, 1},
                  {out, by_size, 1}, false);
      for (int64_t i = 0; i < rows; ++i) row_scale(out + i * by_size, a.size, inverse_sums[i]);
      unpack(out, rows, a.size, at_head(a.out, batch, head) + first * a.out.position, a.out.position);
    }
  }
}

// scores = P, products = dO vt on entry; products = P (dO vt - sum(dO O)) scale, times the derivative of the cap, the
// gradient of the unscaled scores, on exit.
template <class W>
void score_gradients(int64_t rows, int64_t width, int64_t ld, const W* deltas, W scale, const W* scores, W* products) {
  for (int64_t i = 0; i < rows; ++i) {
    const W *p = scores + i * ld, delta = deltas[i];
    W* d = products + i * ld;
    for_vectors<W>(width, [&](int64_t j, auto part) {
      store(d + j, load(p + j, part) * (load(d + j, part) - delta) * scale, part);
    });
  }
}

// Multiplies each query's products by the derivative of the cap, which exists only where the query may look. Elsewhere
// products are zero.
template <class T>
void through_cap(const AttentionTask<T>& a, const QueryBlock& block, const KeyRun& run, const WideOf<T>* slopes,
                 WideOf<T>* products) {
  using W = WideOf<T>;
  const int64_t ld = packed<W>(a.keys), query = block.batch * a.mask_stride + block.first;
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t from = run.at(a.from[query + i]), to = run.at(a.to[query + i]);
    W* d = products + i * ld + from;
    const W* slope = slopes + i * ld + from;
    for_vectors<W>(to - from,
                   [&](int64_t j, auto part) { store(d + j, load(d + j, part) * load(slope + j, part), part); });
  }
}

/// Key-value heads [begin, end) of batch * kv_heads, with all query heads that read them.
template <class T>
void attention_backward(const AttentionTask<T>& a, int64_t begin, int64_t end, WideOf<T>* scratch) {
  using W = WideOf<T>;
  const int64_t by_size = packed<W>(a.size), by_keys = packed<W>(a.keys), group = a.heads / a.kv_heads;
  W *k = scratch, *v = k + a.keys * by_size, *dk = v + a.keys * by_size, *dv = dk + a.keys * by_size;
  W *kt = dv + a.keys * by_size, *vt = kt + a.size * by_keys, *q = vt + a.size * by_keys,
    *dout = q + kQueryBlock * by_size;
  W *dq = dout + kQueryBlock * by_size, *out = dq + kQueryBlock * by_size, *scores = out + kQueryBlock * by_size;
  W *products = scores + kQueryBlock * by_keys, *slopes = a.soft_cap != 0 ? products + kQueryBlock * by_keys : nullptr;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / a.kv_heads, kv_head = item % a.kv_heads;
    pack(at_head(a.k, batch, kv_head), a.k.position, a.keys, a.size, k);
    pack(at_head(a.v, batch, kv_head), a.v.position, a.keys, a.size, v);
    transpose(k, a.keys, a.size, kt);
    transpose(v, a.keys, a.size, vt);
    for (int64_t i = 0; i < a.keys * by_size; ++i) dk[i] = dv[i] = 0;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
      for (int64_t first = 0; first < a.queries; first += kQueryBlock) {
        const int64_t rows = a.queries - first < kQueryBlock ? a.queries - first : kQueryBlock;
        const KeyRun run = keys_of_block(a, batch, first, rows);
        const int64_t width = run.count, start = run.first * by_size;  // of the run in packed keys and values
        const auto block = [&](const auto& x) { return at_head(x, batch, head) + first * x.position; };
        pack<T>(block(a.q), a.q.position, rows, a.size, q);
        pack<T>(block(a.dout), a.dout.position, rows, a.size, dout);
        pack<T>(block(a.out), a.out.position, rows, a.size, out);
        masked_scores<T>(a, {batch, head, first, rows}, run, q, kt, scores, slopes);
        W deltas[kQueryBlock];
        for (int64_t i = 0; i < rows; ++i) {
          row_exp(scores + i * by_keys, width, a.log_sums[(batch * a.heads + head) * a.queries + first + i]);
          Vec<W> delta{};
          for (int64_t j = 0; j < a.size; j += kLanes<W>)  // packed rows are zero behind their end
            delta += load(dout + i * by_size + j, Whole{}) * load(out + i * by_size + j, Whole{});
          deltas[i] = sum_of<W>(delta);
        }
        multiply<W>(width, a.size, rows, {scores, 1, by_keys}, {dout, by_size, 1}, {dv + start, by_size, 1}, true);
        multiply<W>(rows, width, a.size, {dout, by_size, 1}, {vt + run.first, by_keys, 1}, {products, by_keys, 1},
                    false);
        score_gradients(rows, width, by_keys, deltas, a.scale, scores, products);
        if (slopes) through_cap<T>(a, {batch, head, first, rows}, run, slopes, products);
        multiply<W>(rows, a.size, width, {products, by_keys, 1}, {k + start, by_size, 1}, {dq, by_size, 1}, false);
        multiply<W>(width, a.size, rows, {products, 1, by_keys}, {q, by_size, 1}, {dk + start, by_size, 1}, true);
        unpack(dq, rows, a.size, block(a.dq), a.dq.position);
      }
    unpack(dk, a.keys, a.size, at_head(a.dk, batch, kv_head), a.dk.position);
    unpack(dv, a.keys, a.size, at_head(a.dv, batch, kv_head), a.dv.position);
  }
}

}  // namespace
}  // namespace colossal::ops
