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
constexpr int64_t kPagedUnits = kPagedKeys / kPagedUnit;

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
  int8_t bits;
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

/// The value of a page element in units of what page_vector() returns for it.
template <class P>
constexpr float kPagedFactor = std::is_same_v<P, Fp8Code> ? kE4m3Unit : 1;

inline Vec<float> code_vector(const int8_t* p) { return load_int8(p); }
inline Vec<float> code_vector(const Fp8Code* p) { return load_e4m3(&p->bits); }

/// Loads a vector of page elements in the computing type.
template <class W, class P>
inline Vec<W> page_vector(const P* p) {
  if constexpr (sizeof(P) > 1) {
    return load(p, Whole{});
  } else if constexpr (std::is_same_v<W, float>) {
    return code_vector(p);
  } else {
    P codes[kLanes<float>] = {};
    __builtin_memcpy(codes, p, kLanes<W>);
    const Vec<float> numbers = code_vector(codes);
    Vec<W> wide{};
    for (int lane = 0; lane < kLanes<W>; ++lane) wide[lane] = numbers[lane];
    return wide;
  }
}

/// The places of a tile of keys in the pages, by units of kPagedUnit keys. Units after the tile's last key repeat the
/// last one with a key.
template <class P>
struct PagedTile {
  int64_t count = 0;             // keys
  const P* keys[kPagedUnits];    // the unit's first key; its features are a page's tokens apart
  const P* values[kPagedUnits];  // value of the unit's first key; values are `padded` apart
  const float *key_scales[kPagedUnits], *value_scales[kPagedUnits];
};

/// Loads the line of `p` into the second cache. More loads of this kind than of the first cache can be under way, so a
/// core reads memory twice as fast.
inline void load_ahead(const void* p) { __builtin_prefetch(p, 0, 2); }

/// Memory to load into the cache while scores are computed: lines of each feature of the next tile's keys.
struct KeysAhead {
  const char* lines[kPagedUnits];
  int64_t stride = 0;  // bytes from feature to feature
  int count = 0;

  void prefetch(int64_t feature) const {
    for (int i = 0; i < count; ++i) load_ahead(lines[i] + feature * stride);
  }
};

template <class P>
inline KeysAhead keys_ahead(const PagedTile<P>& next, int64_t page) {
  KeysAhead ahead;
  ahead.stride = page * static_cast<int64_t>(sizeof(P));
  for (int64_t u = 0; u < kPagedUnits; ++u) {
    const bool is_behind = u > 0 && next.keys[u] == next.keys[u - 1] + kPagedUnit;
    if (is_behind && u * kPagedUnit * sizeof(P) % 64 != 0) continue;  // in the line before
    ahead.lines[ahead.count++] = reinterpret_cast<const char*>(next.keys[u]);
  }
  return ahead;
}

/// Multiplies column j of `numbers` by the scale of key j. The columns up to the next whole vector are multiplied, too.
template <class P, class W>
inline void scale_paged(int64_t rows, int64_t count, const float* const* of_units, W* numbers) {
  W scales[kPagedKeys];
  for (int64_t u = 0; u * kPagedUnit < count; ++u)
    for (int64_t j = 0; j < kPagedUnit; ++j)
      scales[u * kPagedUnit + j] = static_cast<W>(of_units[u][j]) * static_cast<W>(kPagedFactor<P>);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < count; j += kLanes<W>) {
      W* at = numbers + i * kPagedKeys + j;
      store(at, load(at, Whole{}) * load(scales + j, Whole{}), Whole{});
    }
}

// sums[i][v] += number_of(i) vector_of(v)
template <class W, int Rows, int V, class Numbers, class Vectors>
inline __attribute__((always_inline)) void add_products(Vec<W> (&sums)[Rows][V], const Numbers& number_of,
                                                        const Vectors& vector_of) {
  if constexpr (Rows == 1) {  // one vector at a time, because the registers do not hold V more than the sums
    const Vec<W> number = splat<W>(number_of(0));
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sums[0][v] += number * vector_of(v);
  } else {
    Vec<W> vectors[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) vectors[v] = vector_of(v);
#pragma GCC unroll 6
    for (int i = 0; i < Rows; ++i) {
      const Vec<W> number = splat<W>(number_of(i));
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sums[i][v] += number * vectors[v];
    }
  }
}

// scores[Rows, V vectors] = q k for the vectors of keys that begin at `k`; features are `stride` apart.
template <class W, class P, int Rows, int V>
inline void score_part(const W* q, int64_t size, const P* const* k, int64_t stride, const KeysAhead& ahead, W* scores) {
  Vec<W> sums[Rows][V] = {};
  for (int64_t d = 0; d < size; ++d) {
    ahead.prefetch(d);
    add_products<W>(
        sums, [&](int i) { return q[i * size + d]; }, [&](int v) { return page_vector<W>(k[v] + d * stride); });
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(scores + i * kPagedKeys + v * kLanes<W>, sums[i][v], Whole{});
}

// sums[Rows, V vectors] += weights[Rows, keys of the tile] times their values, from feature `feature` on. The same part
// of the values of `next` is loaded into the cache.
template <class W, class P, int Rows, int V>
inline void value_part(const W* weights, const PagedTile<P>& tile, const PagedTile<P>* next, int64_t feature, W* sums,
                       int64_t padded) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(P));
  Vec<W> all[Rows][V];
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) all[i][v] = load(sums + i * padded + v * kLanes<W>, Whole{});
  for (int64_t u = 0; u * kPagedUnit < tile.count; ++u) {
    const int64_t rest = tile.count - u * kPagedUnit, count = rest < kPagedUnit ? rest : kPagedUnit;
    const P *values = tile.values[u] + feature, *ahead = next ? next->values[u] + feature : nullptr;
    for (int64_t j = 0; j < count; ++j, values += padded) {
      if (ahead) {
#pragma GCC unroll 8
        for (int64_t i = 0; i < V * kLanes<W>; i += kLine) load_ahead(ahead + i);
        ahead += padded;
      }
      add_products<W>(
          all, [&](int i) { return weights[i * kPagedKeys + u * kPagedUnit + j]; },
          [&](int v) { return page_vector<W>(values + v * kLanes<W>); });
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sums + i * padded + v * kLanes<W>, all[i][v], Whole{});
}

// Calls part(first row, Rows, first vector, V) over rows x vectors, in parts whose sums fit the registers.
template <class Part>
inline __attribute__((always_inline)) void for_paged_parts(int64_t rows, int64_t vectors, const Part& part) {
  int64_t row = 0;
  const auto take = [&](auto count) __attribute__((always_inline)) {
    constexpr int kRows = decltype(count)::value;
    constexpr int kMaxVectors = kRows >= 4 ? (kVectorBytes == 64 ? 4 : 2) : kRows >= 2 ? 4 : 8;
    for (; row + kRows <= rows; row += kRows) {
      int64_t v = 0;
      const auto take_vectors = [&](auto width) __attribute__((always_inline)) {
        constexpr int kVectors = decltype(width)::value;
        if constexpr (kVectors <= kMaxVectors)
          for (; v + kVectors <= vectors; v += kVectors) part(row, count, v, width);
      };
      take_vectors(std::integral_constant<int, 8>());
      take_vectors(std::integral_constant<int, 4>());
      take_vectors(std::integral_constant<int, 2>());
      take_vectors(std::integral_constant<int, 1>());
    }
  };
  take(std::integral_constant<int, 6>());
  take(std::integral_constant<int, 4>());
  take(std::integral_constant<int, 2>());
  take(std::integral_constant<int, 1>());
}

// Writes the values of a tile by feature, [padded, kPagedKeys], so that a vector holds neighbouring keys.
template <class W, class P>
inline void keys_of_values(const PagedTile<P>& tile, int64_t padded, W* keys) {
  constexpr int64_t kWidth = kLanes<W>;
  const int64_t count = tile.count;
  for (int64_t j = 0; j < count; ++j) {
    const P* value = tile.values[j / kPagedUnit] + j % kPagedUnit * padded;
    for (int64_t d = 0; d < padded; d += kWidth) {
      const Vec<W> features = page_vector<W>(value + d);
      for (int64_t lane = 0; lane < kWidth; ++lane) keys[(d + lane) * kPagedKeys + j] = features[lane];
    }
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

// Returns the places of the tile of keys [first, last) of a head.
template <class P, class T>
PagedTile<P> paged_tile(const PagedRows<T>& rows, int64_t kv_head, int64_t first, int64_t last) {
  const PagedTask<T>& a = rows.a;
  PagedTile<P> tile{last - first < kPagedKeys ? last - first : kPagedKeys};
  int64_t index = first / a.page, token = first % a.page;
  for (int64_t u = 0; u < kPagedUnits; ++u) {
    const int64_t page = rows.s.table[index] * a.kv_heads + kv_head, place = page * a.page + token;
    tile.keys[u] = a.k ? static_cast<const P*>(a.k) + page * a.size * a.page + token : nullptr;
    tile.values[u] = static_cast<const P*>(a.v) + place * a.padded;
    if constexpr (!std::is_same_v<P, T>) {
      tile.key_scales[u] = (a.k ? a.k_scales : a.v_scales) + place;
      tile.value_scales[u] = a.v_scales + place;
    }
    if ((u + 1) * kPagedUnit < tile.count && (token += kPagedUnit) == a.page) ++index, token = 0;
  }
  return tile;
}

// scores[rows, keys of the tile] = q k
template <class P, class T>
void paged_scores(const PagedRows<T>& rows, const PagedTile<P>& tile, const PagedTile<P>& next,
                  const PagedMemory<T>& memory) {
  using W = WideOf<T>;
  const PagedTask<T>& a = rows.a;
  const int64_t vectors = (tile.count + kLanes<W> - 1) / kLanes<W>;
  const auto score = [&]<class Q>(const Q* const* columns, int64_t stride, const KeysAhead& ahead) {
    for_paged_parts(rows.count(), vectors, [&](int64_t row, auto r, int64_t v, auto width) {
      score_part<W, Q, decltype(r)::value, decltype(width)::value>(memory.q + row * a.size, a.size, columns + v, stride,
                                                                   row == 0 && v == 0 ? ahead : KeysAhead(),
                                                                   memory.scores + row * kPagedKeys + v * kLanes<W>);
    });
  };
  if (a.k) {
    constexpr int64_t kOfUnit = kPagedUnit / kLanes<W>;
    const P* columns[kPagedKeys];
    for (int64_t v = 0; v < vectors; ++v) columns[v] = tile.keys[v / kOfUnit] + v % kOfUnit * kLanes<W>;
    score(columns, a.page, keys_ahead(next, a.page));
  } else {
    keys_of_values<W>(tile, a.padded, memory.keys);
    const W* columns[kPagedKeys];
    for (int64_t v = 0; v < vectors; ++v) columns[v] = memory.keys + v * kLanes<W>;
    score(columns, kPagedKeys, {});
  }
}

// Computes the softmax of the rows over the keys of a part into `state`. A tile is loaded into the cache while the one
// before it is computed, because a tile is too short for the processor to load it ahead by itself.
template <class P, class T>
void attend_to_part_of(const PagedRows<T>& rows, int64_t part, const PagedMemory<T>& memory,
                       const PagedState<T>& state) {
  using W = WideOf<T>;
  constexpr bool kHasCodes = !std::is_same_v<P, T>;
  const PagedTask<T>& a = rows.a;
  for (int64_t i = 0; i < rows.count(); ++i) state.largest[i] = -static_cast<W>(__builtin_inf()), state.total[i] = 0;
  for (int64_t d = 0; d < rows.count() * a.padded; ++d) state.sums[d] = 0;
  const int64_t from = rows.at(0).from, to = rows.at(rows.count() - 1).to, border = (part + 1) * kPagedPart;
  const int64_t last = to < border ? to : border, next_head = rows.kv_head + 1 < a.kv_heads ? rows.kv_head + 1 : 0;
  int64_t first = (from > part * kPagedPart ? from : part * kPagedPart) / kPagedKeys * kPagedKeys;
  if (first >= last) return;
  for (PagedTile<P> tile = paged_tile<P>(rows, rows.kv_head, first, last), next; first < last; tile = next) {
    const int64_t behind = first + kPagedKeys;
    next = behind < to ? paged_tile<P>(rows, rows.kv_head, behind, behind < last ? last : to)
                       : paged_tile<P>(rows, next_head, from / kPagedKeys * kPagedKeys, to);
    for (int64_t u = 0; kHasCodes && u < kPagedUnits; ++u)
      load_ahead(next.key_scales[u]), load_ahead(next.value_scales[u]);
    paged_scores(rows, tile, next, memory);
    if constexpr (kHasCodes) scale_paged<P>(rows.count(), tile.count, tile.key_scales, memory.scores);
    paged_weights(rows, first, tile.count, memory.scores, state);
    if constexpr (kHasCodes) scale_paged<P>(rows.count(), tile.count, tile.value_scales, memory.scores);
    for_paged_parts(rows.count(), a.padded / kLanes<W>, [&](int64_t row, auto r, int64_t v, auto width) {
      value_part<W, P, decltype(r)::value, decltype(width)::value>(
          memory.scores + row * kPagedKeys, tile, row == 0 ? &next : nullptr, v * kLanes<W>,
          state.sums + row * a.padded + v * kLanes<W>, a.padded);
    });
    first = behind;
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
