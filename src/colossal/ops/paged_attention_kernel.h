// Body of attention to keys and values in pages; see paged_attention.h. Keys are taken in runs of kPagedKeys positions,
// counted from the first of the sequence, and a softmax is made of its parts as they come by. Keys lie in a page by
// feature, so that a vector is of neighbouring keys and their products with a query are sums in the order of features;
// what a query gets does not depend on the queries beside it.
#pragma once
#include "colossal/ops/attention_scores_kernel.h"
#include "colossal/ops/packed_kernel.h"
#include "colossal/ops/rows_kernel.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int64_t kPagedKeys = 64;

/// Where a thread keeps what it is at. Without scratch memory it tells how much of that it needs, `used`.
template <class T>
struct PagedMemory {
  using W = WideOf<T>;
  PagedMemory(const PagedTask<T>& a, W* scratch) : scratch(scratch) {
    const int64_t group = a.heads / a.kv_heads, rows = group > kPagedRows ? group : kPagedRows;
    q = take(rows * a.size), sums = take(rows * a.padded), scores = take(rows * kPagedKeys);
    largest = take(rows), total = take(rows);
  }
  W* take(int64_t elements) {
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(W));
    const int64_t first = used;
    used += (elements + kLine - 1) / kLine * kLine;
    return scratch ? scratch + first : nullptr;
  }
  W* scratch;
  int64_t used = 0;
  W *q, *sums, *scores, *largest, *total;
};

template <class T>
int64_t paged_scratch(const PagedTask<T>& a) {
  return PagedMemory<T>(a, nullptr).used;
}

// scores[Rows, V vectors] = q k of the vectors of keys that begin at `k`, features `stride` apart.
template <class T, int Rows, int V>
inline void score_part(const WideOf<T>* q, int64_t size, const T* const* k, int64_t stride, WideOf<T>* scores) {
  using W = WideOf<T>;
  Vec<W> sums[Rows][V] = {};
  for (int64_t d = 0; d < size; ++d) {
    Vec<W> keys[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) keys[v] = load(k[v] + d * stride, Whole{});
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      const Vec<W> number = splat<W>(q[i * size + d]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[i][v] += number * keys[v];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(scores + i * kPagedKeys + v * kLanes<W>, sums[i][v], Whole{});
}

// sums[Rows, V vectors] += weights[Rows, count] values of these keys.
template <class T, int Rows, int V>
inline void value_part(const WideOf<T>* weights, const T* const* values, int64_t count, int64_t feature,
                       WideOf<T>* sums, int64_t stride) {
  using W = WideOf<T>;
  Vec<W> all[Rows][V];
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) all[i][v] = load(sums + i * stride + v * kLanes<W>, Whole{});
  for (int64_t j = 0; j < count; ++j) {
    Vec<W> value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) value[v] = load(values[j] + feature + v * kLanes<W>, Whole{});
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      const Vec<W> weight = splat<W>(weights[i * kPagedKeys + j]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) all[i][v] += weight * value[v];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + i * stride + v * kLanes<W>, all[i][v], Whole{});
}

// part(first row, Rows, first vector, V) over rows x vectors, in parts whose sums fit registers.
template <class Part>
inline __attribute__((always_inline)) void for_paged_parts(int64_t rows, int64_t vectors, const Part& part) {
  int64_t row = 0;
  const auto take = [&](auto count) __attribute__((always_inline)) {
    constexpr int kRows = decltype(count)::value;
    constexpr int kMost = kRows >= 4 ? (kVectorBytes == 64 ? 4 : 2) : 4;
    for (; row + kRows <= rows; row += kRows) {
      int64_t v = 0;
      for (; v + kMost <= vectors; v += kMost) part(row, count, v, std::integral_constant<int, kMost>());
      for (; v < vectors; ++v) part(row, count, v, std::integral_constant<int, 1>());
    }
  };
  take(std::integral_constant<int, 6>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

/// What a row, a pair of a query and a head, sees.
struct PagedRow {
  int64_t head, position, from, to;
};

template <class T>
struct PagedRows {
  const PagedTask<T>& a;
  const PagedQueries& s;
  int64_t kv_head;
  int64_t group() const { return a.heads / a.kv_heads; }
  int64_t count() const { return s.count * group(); }
  int64_t token(int64_t row) const { return s.first + row / group(); }
  PagedRow at(int64_t row) const {
    const int64_t position = s.position + row / group();
    const int64_t from = position + 1 - a.reach;
    return {kv_head * group() + row % group(), position, from > 0 ? from : 0, position + 1};
  }
};

// Scores of keys [tile, tile + count) become weights relative to the largest score so far, and 0 where a row may not
// look; what rows have already goes by that too.
template <class T>
void paged_weights(const PagedRows<T>& rows, int64_t tile, int64_t count, const PagedMemory<T>& memory) {
  using W = WideOf<T>;
  const PagedTask<T>& a = rows.a;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const PagedRow row = rows.at(i);
    W* scores = memory.scores + i * kPagedKeys;
    const int64_t from = row.from > tile ? (row.from - tile < count ? row.from - tile : count) : 0;
    const int64_t to = row.to > tile ? (row.to - tile < count ? row.to - tile : count) : 0;
    for (int64_t j = 0; j < from; ++j) scores[j] = 0;
    for (int64_t j = to > from ? to : from; j < count; ++j) scores[j] = 0;
    if (from >= to) continue;
    if (a.soft_cap != 0) cap_scores<W>(scores + from, nullptr, to - from, a.soft_cap);
    if (a.alibi) {
      const W slope = static_cast<W>(a.alibi[row.head]);
      add_ramp<W>(scores + from, to - from, slope * static_cast<W>(tile + from - row.position), slope);
    }
    exponentials<W>(1, to - from, kPagedKeys, scores + from, memory.largest + i, memory.total + i, a.padded, a.padded,
                    memory.sums + i * a.padded);
  }
}

template <class T>
void paged_attention(const PagedTask<T>& a, const PagedQueries& s, int64_t kv_head, WideOf<T>* scratch) {
  using W = WideOf<T>;
  const PagedMemory<T> memory(a, scratch);
  const PagedRows<T> rows{a, s, kv_head};
  for (int64_t i = 0; i < rows.count(); ++i) {
    const T* from = a.q + rows.token(i) * a.q_token + rows.at(i).head * a.q_head;
    for_vectors<W>(
        a.size, [&](int64_t d, auto part) { store(memory.q + i * a.size + d, load(from + d, part) * a.scale, part); });
    memory.largest[i] = -static_cast<W>(__builtin_inf()), memory.total[i] = 0;
    for (int64_t d = 0; d < a.padded; ++d) memory.sums[i * a.padded + d] = 0;
  }
  const int64_t last = rows.at(rows.count() - 1).to;
  for (int64_t tile = rows.at(0).from / kPagedKeys * kPagedKeys; tile < last; tile += kPagedKeys) {
    const int64_t count = last - tile < kPagedKeys ? last - tile : kPagedKeys;
    const T *keys[kPagedKeys], *values[kPagedKeys];  // the first of vectors; of each
    const int64_t vectors = (count + kLanes<W> - 1) / kLanes<W>;
    const auto page_of = [&](int64_t key) { return s.table[key / a.page] * a.kv_heads + kv_head; };
    for (int64_t v = 0; v < vectors; ++v) {
      const int64_t key = tile + v * kLanes<W>;
      keys[v] = a.k + page_of(key) * a.size * a.page + key % a.page;
    }
    for (int64_t j = 0; j < count; ++j) values[j] = a.v + (page_of(tile + j) * a.page + (tile + j) % a.page) * a.padded;
    for_paged_parts(rows.count(), vectors, [&](int64_t row, auto r, int64_t v, auto width) {
      score_part<T, decltype(r)::value, decltype(width)::value>(memory.q + row * a.size, a.size, keys + v, a.page,
                                                                memory.scores + row * kPagedKeys + v * kLanes<W>);
    });
    paged_weights(rows, tile, count, memory);
    for_paged_parts(rows.count(), a.padded / kLanes<W>, [&](int64_t row, auto r, int64_t v, auto width) {
      value_part<T, decltype(r)::value, decltype(width)::value>(memory.scores + row * kPagedKeys, values, count,
                                                                v * kLanes<W>,
                                                                memory.sums + row * a.padded + v * kLanes<W>, a.padded);
    });
  }
  for (int64_t i = 0; i < rows.count(); ++i) {
    T* to = a.out + (rows.token(i) * a.heads + rows.at(i).head) * a.size;
    const W inverse = 1 / memory.total[i];
    for_vectors<W>(a.size, [&](int64_t d, auto part) {
      store(to + d, load(memory.sums + i * a.padded + d, part) * inverse, part);
    });
  }
}

}  // namespace
}  // namespace colossal::ops
