// Body of attention to keys and values in pages; see paged.h. Keys are processed in tiles of kPagedKeys
// positions, counted from the first key that the pages hold of the sequence. The softmax is accumulated tile by tile. A
// page stores keys by feature, so a vector holds neighbouring keys. Their products with a query are summed in the order
// of features.
// Each part of kPagedPart keys has its own softmax. The parts are merged in order, by one thread or by many. The result
// of a query therefore depends neither on the other queries nor on which thread computes which part.
#pragma once
#include "colossal/ops/attention/paged_positions.h"
#include "colossal/ops/attention/scores_kernel.h"
#include "colossal/ops/products/packed_kernel.h"
#include "colossal/ops/rows_kernel.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int64_t kPagedKeys = 64;

template <class T>
int64_t max_paged_rows(const PagedTask<T>& a) {
  const int64_t group = a.heads / a.kv_heads;
  return group > kPagedRows ? group : kPagedRows;
}

template <class W>
constexpr int64_t whole_lines(int64_t elements) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(W));
  return (elements + kLine - 1) / kLine * kLine;
}

/// An 8-bit floating point value, e4m3.
struct Fp8Code {
  uint8_t bits;
};

/// Softmax of rows over some keys: the weighted sum of values, the largest score, and the sum of weights. Weights are
/// relative to the largest score. The sum of weights is 0 if a row sees no key.
template <class T>
struct PagedState {
  using W = WideOf<T>;
  PagedState(const PagedTask<T>& a, W* memory)
      : sums(memory),
        largest(sums + whole_lines<W>(max_paged_rows(a) * a.padded)),
        total(largest + whole_lines<W>(max_paged_rows(a))) {}
  W *sums, *largest, *total;  // [rows, padded], [rows], [rows]
};

template <class T>
int64_t paged_state(const PagedTask<T>& a) {
  using W = WideOf<T>;
  return whole_lines<W>(max_paged_rows(a) * a.padded) + 2 * whole_lines<W>(max_paged_rows(a));
}

/// Scratch memory of a thread: queries, scores, the states of one part and of all parts before it, and for joint pages
/// a tile of keys by feature.
template <class T>
struct PagedMemory {
  using W = WideOf<T>;
  PagedMemory(const PagedTask<T>& a, W* scratch)
      : q(scratch),
        scores(q + whole_lines<W>(max_paged_rows(a) * a.size)),
        part(scores + max_paged_rows(a) * kPagedKeys),
        whole(part + paged_state(a)),
        keys(whole + paged_state(a)) {}
  W *q, *scores, *part, *whole, *keys;
};

template <class T>
int64_t paged_scratch(const PagedTask<T>& a) {
  const int64_t joint_keys = a.k ? 0 : a.padded * kPagedKeys;
  return whole_lines<WideOf<T>>(max_paged_rows(a) * a.size) + max_paged_rows(a) * kPagedKeys + 2 * paged_state(a) +
         joint_keys;
}

template <class W>
struct PagedBytes {
  typedef int8_t Signed __attribute__((vector_size(kLanes<W>)));
  typedef uint8_t Unsigned __attribute__((vector_size(kLanes<W>)));
};

/// Loads a vector of page elements in the computing type.
template <class W, class P>
inline Vec<W> page_vector(const P* p) {
  return load(p, Whole{});
}
template <class W>
inline Vec<W> page_vector(const int8_t* p) {
  typename PagedBytes<W>::Signed codes;
  __builtin_memcpy(&codes, p, sizeof codes);
  return __builtin_convertvector(codes, Vec<W>);
}
/// Loads e4m3 values: the exponent is moved to its position in W. If the exponent is 0, a leading bit is added before
/// the mantissa and its value is subtracted again, so that no intermediate value is subnormal.
template <class W>
inline Vec<W> page_vector(const Fp8Code* p) {
  using I = typename Simd<W>::Integers;
  constexpr int kMantissa = sizeof(W) == 4 ? 23 : 52, kBias = sizeof(W) == 4 ? 127 : 1023;
  typename PagedBytes<W>::Unsigned bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  const I codes = __builtin_convertvector(bytes, I), magnitude = codes & 0x7F;
  const auto is_small = magnitude < 8;
  const I origin = I{} + (static_cast<decltype(I{}[0] + 0)>(kBias - 7) << kMantissa);
  const I normal = is_small ? magnitude + 8 : magnitude;
  const Vec<W> value = (Vec<W>)((normal << (kMantissa - 3)) + origin);
  const Vec<W> exact = is_small ? value - static_cast<W>(0x1p-6) : value;
  return codes > 0x7F ? -exact : exact;
}

/// Multiplies column j of `numbers` by the scale of key j.
template <class W>
inline void scale_paged(int64_t rows, int64_t count, const float* const* scales, W* numbers) {
  for (int64_t j = 0; j < count; ++j) {
    const W scale = static_cast<W>(*scales[j]);
    for (int64_t i = 0; i < rows; ++i) numbers[i * kPagedKeys + j] *= scale;
  }
}

// scores[Rows, V vectors] = q k for the vectors of keys that begin at `k`; features are `stride` apart.
template <class W, class P, int Rows, int V>
inline void score_part(const W* q, int64_t size, const P* const* k, int64_t stride, W* scores) {
  Vec<W> sums[Rows][V] = {};
  for (int64_t d = 0; d < size; ++d) {
    Vec<W> keys[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) keys[v] = page_vector<W>(k[v] + d * stride);
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

// sums[Rows, V vectors] += weights[Rows, count] times the values of these keys.
template <class W, class P, int Rows, int V>
inline void value_part(const W* weights, const P* const* values, int64_t count, int64_t feature, W* sums,
                       int64_t stride) {
  Vec<W> all[Rows][V];
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) all[i][v] = load(sums + i * stride + v * kLanes<W>, Whole{});
  for (int64_t j = 0; j < count; ++j) {
    Vec<W> value[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) value[v] = page_vector<W>(values[j] + feature + v * kLanes<W>);
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

// Calls part(first row, Rows, first vector, V) over rows x vectors, in parts whose sums fit the registers.
template <class Part>
inline __attribute__((always_inline)) void for_paged_parts(int64_t rows, int64_t vectors, const Part& part) {
  int64_t row = 0;
  const auto take = [&](auto count) __attribute__((always_inline)) {
    constexpr int kRows = decltype(count)::value;
    constexpr int kMaxVectors = kRows >= 4 ? (kVectorBytes == 64 ? 4 : 2) : 4;
    for (; row + kRows <= rows; row += kRows) {
      int64_t v = 0;
      for (; v + kMaxVectors <= vectors; v += kMaxVectors)
        part(row, count, v, std::integral_constant<int, kMaxVectors>());
      for (; v < vectors; ++v) part(row, count, v, std::integral_constant<int, 1>());
    }
  };
  take(std::integral_constant<int, 6>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

// Writes the values of `count` keys by feature, [padded, kPagedKeys], so that a vector holds neighbouring keys.
template <class W, class P>
inline void keys_of_values(const P* const* values, int64_t count, int64_t padded, W* keys) {
  constexpr int64_t kWidth = kLanes<W>;
  for (int64_t j = 0; j < count; ++j)
    for (int64_t d = 0; d < padded; d += kWidth) {
      const Vec<W> features = page_vector<W>(values[j] + d);
      for (int64_t lane = 0; lane < kWidth; ++lane) keys[(d + lane) * kPagedKeys + j] = features[lane];
    }
  // the rest of the last vector, whose scores are not used
  for (int64_t j = count; j < (count + kWidth - 1) / kWidth * kWidth; ++j)
    for (int64_t d = 0; d < padded; ++d) keys[d * kPagedKeys + j] = 0;
}

/// Keys [from, to) of the stored ones that a row sees. A row is a pair of a query and a head.
struct PagedRow {
  int64_t head, position, from, to;
};

template <class T>
struct PagedRows {
  const PagedTask<T>& a;
  const PagedQueries& s;
  int64_t kv_head;
  PagePositions places() const { return {a.page, s.first_page, s.page_stride}; }
  int64_t group() const { return a.heads / a.kv_heads; }
  int64_t count() const { return s.count * group(); }
  int64_t token(int64_t row) const { return s.first + row / group(); }
  PagedRow at(int64_t row) const {
    const int64_t position = s.position + row / group();
    return {kv_head * group() + row % group(), position, places().keys_before(position + 1 - a.reach),
            places().keys_before(position + 1)};
  }
};

// scores[j] of key first + j += slope * (key position - query position).
template <class T>
void add_paged_ramp(const PagedRows<T>& rows, const PagedRow& row, int64_t first, int64_t count, WideOf<T>* scores) {
  using W = WideOf<T>;
  const PagePositions places = rows.places();
  const W slope = static_cast<W>(rows.a.alibi[row.head]);
  for (int64_t j = 0; j < count;) {
    const int64_t key = first + j, of_page = places.stride == 1 ? count - j : places.tokens - key % places.tokens;
    const int64_t n = of_page < count - j ? of_page : count - j;
    add_ramp<W>(scores + j, n, slope * static_cast<W>(places.position_of(key) - row.position), slope);
    j += n;
  }
}

// Replaces the scores of keys [tile, tile + count) by weights relative to the largest score so far, and by 0 for keys
// that a row may not see. If the largest score grows, the state is rescaled to it.
template <class T>
void paged_weights(const PagedRows<T>& rows, int64_t tile, int64_t count, WideOf<T>* all_scores,
                   const PagedState<T>& state) {
  using W = WideOf<T>;
  const PagedTask<T>& a = rows.a;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const PagedRow row = rows.at(i);
    W* scores = all_scores + i * kPagedKeys;
    const int64_t from = row.from > tile ? (row.from - tile < count ? row.from - tile : count) : 0;
    const int64_t to = row.to > tile ? (row.to - tile < count ? row.to - tile : count) : 0;
    for (int64_t j = 0; j < from; ++j) scores[j] = 0;
    for (int64_t j = to > from ? to : from; j < count; ++j) scores[j] = 0;
    if (from >= to) continue;
    if (a.soft_cap != 0) cap_scores<W>(scores + from, nullptr, to - from, a.soft_cap);
    if (a.alibi) add_paged_ramp(rows, row, tile + from, to - from, scores + from);
    exponentials<W>(1, to - from, kPagedKeys, scores + from, state.largest + i, state.total + i, a.padded, a.padded,
                    state.sums + i * a.padded);
  }
}

template <class T>
void take_paged_queries(const PagedRows<T>& rows, WideOf<T>* q) {
  using W = WideOf<T>;
  const PagedTask<T>& a = rows.a;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const T* from = a.q + rows.token(i) * a.q_token + rows.at(i).head * a.q_head;
    for_vectors<W>(a.size,
                   [&](int64_t d, auto part) { store(q + i * a.size + d, load(from + d, part) * a.scale, part); });
  }
}

// Computes the softmax of the rows over the keys of a part into `state`.
template <class P, class T>
void attend_to_part_of(const PagedRows<T>& rows, int64_t part, const PagedMemory<T>& memory,
                       const PagedState<T>& state) {
  using W = WideOf<T>;
  constexpr bool kHasCodes = !std::is_same_v<P, T>;
  const PagedTask<T>& a = rows.a;
  for (int64_t i = 0; i < rows.count(); ++i) state.largest[i] = -static_cast<W>(__builtin_inf()), state.total[i] = 0;
  for (int64_t d = 0; d < rows.count() * a.padded; ++d) state.sums[d] = 0;
  const int64_t from = rows.at(0).from, to = rows.at(rows.count() - 1).to, border = (part + 1) * kPagedPart;
  const int64_t last = to < border ? to : border;
  for (int64_t tile = (from > part * kPagedPart ? from : part * kPagedPart) / kPagedKeys * kPagedKeys; tile < last;
       tile += kPagedKeys) {
    const int64_t count = last - tile < kPagedKeys ? last - tile : kPagedKeys;
    const P *keys[kPagedKeys], *values[kPagedKeys];  // start of each vector of keys; start of each value
    const float *key_scales[kPagedKeys], *value_scales[kPagedKeys];
    const int64_t vectors = (count + kLanes<W> - 1) / kLanes<W>;
    const auto page_of = [&](int64_t key) { return rows.s.table[key / a.page] * a.kv_heads + rows.kv_head; };
    for (int64_t v = 0; a.k && v < vectors; ++v) {
      const int64_t key = tile + v * kLanes<W>;
      keys[v] = static_cast<const P*>(a.k) + page_of(key) * a.size * a.page + key % a.page;
    }
    for (int64_t j = 0; j < count; ++j) {
      const int64_t place = page_of(tile + j) * a.page + (tile + j) % a.page;
      values[j] = static_cast<const P*>(a.v) + place * a.padded;
      if constexpr (kHasCodes) key_scales[j] = (a.k ? a.k_scales : a.v_scales) + place;
      if constexpr (kHasCodes) value_scales[j] = a.v_scales + place;
    }
    const auto score = [&]<class Q>(const Q* const* columns, int64_t stride) {
      for_paged_parts(rows.count(), vectors, [&](int64_t row, auto r, int64_t v, auto width) {
        score_part<W, Q, decltype(r)::value, decltype(width)::value>(memory.q + row * a.size, a.size, columns + v,
                                                                     stride,
                                                                     memory.scores + row * kPagedKeys + v * kLanes<W>);
      });
    };
    if (a.k) {
      score(keys, a.page);
    } else {
      keys_of_values<W>(values, count, a.padded, memory.keys);
      const W* columns[kPagedKeys];
      for (int64_t v = 0; v < vectors; ++v) columns[v] = memory.keys + v * kLanes<W>;
      score(columns, kPagedKeys);
    }
    if constexpr (kHasCodes) scale_paged<W>(rows.count(), count, key_scales, memory.scores);
    paged_weights(rows, tile, count, memory.scores, state);
    if constexpr (kHasCodes) scale_paged<W>(rows.count(), count, value_scales, memory.scores);
    for_paged_parts(rows.count(), a.padded / kLanes<W>, [&](int64_t row, auto r, int64_t v, auto width) {
      value_part<W, P, decltype(r)::value, decltype(width)::value>(
          memory.scores + row * kPagedKeys, values, count, v * kLanes<W>, state.sums + row * a.padded + v * kLanes<W>,
          a.padded);
    });
  }
}

template <class T>
void attend_to_part(const PagedRows<T>& rows, int64_t part, const PagedMemory<T>& memory, const PagedState<T>& state) {
  switch (rows.a.codes) {
    case PageCodes::None:
      return attend_to_part_of<T>(rows, part, memory, state);
    case PageCodes::Int8:
      return attend_to_part_of<int8_t>(rows, part, memory, state);
    case PageCodes::Fp8:
      return attend_to_part_of<Fp8Code>(rows, part, memory, state);
  }
}

// Merges `part` into `sum`. If a row sees no key of `part`, its bits in `sum` stay the same. The result then does not
// depend on whether other rows needed the part.
template <class T>
void add_paged_part(const PagedRows<T>& rows, const PagedState<T>& part, const PagedState<T>& sum) {
  using W = WideOf<T>;
  const int64_t padded = rows.a.padded;
  for (int64_t i = 0; i < rows.count(); ++i) {
    if (part.total[i] == 0) continue;
    const bool is_first = sum.total[i] == 0;
    const W most = is_first || part.largest[i] > sum.largest[i] ? part.largest[i] : sum.largest[i];
    W own = is_first ? most : sum.largest[i], other = part.largest[i];
    row_exp(&own, 1, most), row_exp(&other, 1, most);
    sum.total[i] = sum.total[i] * own + part.total[i] * other, sum.largest[i] = most;
    W* to = sum.sums + i * padded;
    const W* from = part.sums + i * padded;
    for_vectors<W>(padded,
                   [&](int64_t d, auto n) { store(to + d, load(to + d, n) * own + load(from + d, n) * other, n); });
  }
}

template <class T>
void write_paged(const PagedRows<T>& rows, const PagedState<T>& state) {
  using W = WideOf<T>;
  const PagedTask<T>& a = rows.a;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const int64_t place = rows.token(i) * a.heads + rows.at(i).head;
    const W total = state.total[i], inverse = total == 0 ? 0 : 1 / total;
    const W* sums = state.sums + i * a.padded;
    for_vectors<W>(a.size, [&](int64_t d, auto part) {
      const Vec<W> result = load(sums + d, part) * inverse;
      if (a.out)
        store(a.out + place * a.size + d, result, part);
      else
        store(a.wide + place * a.size + d, result, part);
    });
    if (a.log_sums)
      a.log_sums[place] = total == 0 ? -static_cast<W>(__builtin_inf())
                                     : state.largest[i] + static_cast<W>(__builtin_log(static_cast<double>(total)));
  }
}

template <class T>
void paged_attention(const PagedTask<T>& a, const PagedQueries& s, int64_t kv_head, WideOf<T>* scratch) {
  const PagedMemory<T> memory(a, scratch);
  const PagedRows<T> rows{a, s, kv_head};
  const PagedState<T> whole(a, memory.whole), part(a, memory.part);
  take_paged_queries(rows, memory.q);
  attend_to_part(rows, s.first_part, memory, whole);
  for (int64_t i = 1; i < s.parts; ++i) {
    attend_to_part(rows, s.first_part + i, memory, part);
    add_paged_part(rows, part, whole);
  }
  write_paged(rows, whole);
}

template <class T>
void paged_part(const PagedTask<T>& a, const PagedQueries& s, int64_t kv_head, int64_t part, WideOf<T>* state,
                WideOf<T>* scratch) {
  const PagedMemory<T> memory(a, scratch);
  const PagedRows<T> rows{a, s, kv_head};
  take_paged_queries(rows, memory.q);
  attend_to_part(rows, s.first_part + part, memory, PagedState<T>(a, state));
}

template <class T>
void paged_merge(const PagedTask<T>& a, const PagedQueries& s, int64_t kv_head, WideOf<T>* states) {
  const PagedRows<T> rows{a, s, kv_head};
  const PagedState<T> whole(a, states);
  for (int64_t i = 1; i < s.parts; ++i) add_paged_part(rows, PagedState<T>(a, states + i * paged_state(a)), whole);
  write_paged(rows, whole);
}

}  // namespace
}  // namespace colossal::ops
