// Moves of rows into the layouts of products with panels, and their conversion to codes; see prepacked_kernels.h. Rows
// are read and written in units of 4 bytes: a vector of units of each of four rows at a time, transposed 4 x 4 in each
// 16 bytes.
#pragma once
#include <type_traits>
#include <utility>

#include "colossal/ops/products/panel_parts.h"

namespace colossal::ops {
namespace {

constexpr int kUnits = kLanes<float>;
using UnitIndices = std::make_integer_sequence<int, kUnits>;
typedef uint32_t FourWords __attribute__((vector_size(16)));

/// Each of these takes words of two vectors, in every 16 bytes: {a0 b0 a1 b1}, {a2 b2 a3 b3}, {a0 a1 b0 b1} and
/// {a2 a3 b2 b3}.
template <int Upper, int... I>
inline Words alternate(Words a, Words b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I % 2 * kUnits + I / 4 * 4 + I % 4 / 2 + 2 * Upper)...);
}
template <int Upper, int... I>
inline Words join_halves(Words a, Words b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (I % 4 / 2 * kUnits + I / 4 * 4 + I % 2 + 2 * Upper)...);
}

/// Transposes the 4 x 4 words in each 16 bytes of four vectors.
inline void transpose_fours(Words (&v)[4]) {
  const Words low01 = alternate<0>(v[0], v[1], UnitIndices()), high01 = alternate<1>(v[0], v[1], UnitIndices());
  const Words low23 = alternate<0>(v[2], v[3], UnitIndices()), high23 = alternate<1>(v[2], v[3], UnitIndices());
  v[0] = join_halves<0>(low01, low23, UnitIndices());
  v[1] = join_halves<1>(low01, low23, UnitIndices());
  v[2] = join_halves<0>(high01, high23, UnitIndices());
  v[3] = join_halves<1>(high01, high23, UnitIndices());
}

/// Returns every second word of a and b, from word `Odd` on.
template <int Odd, int... I>
inline Words every_second(Words a, Words b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I + Odd)...);
}
/// Returns the 16 bytes of v in the order of a transposition: as many rows of 16 bytes as there are words in a row.
template <int... I>
inline Words across_fours(Words v, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(v, v, (I % (kUnits / 4) * 4 + I / (kUnits / 4))...);
}

/// Returns words k, k + 1, ... of `bytes` bytes, with zeros after the last byte.
inline Words words_of(const char* row, int64_t k, int64_t bytes) {
  const int64_t left = bytes - 4 * k;
  if (left >= kVectorBytes) return load_bytes<Words>(row + 4 * k);
  Words words{};
  if (left > 0) __builtin_memcpy(&words, row + 4 * k, static_cast<size_t>(left));
  return words;
}
/// Returns numbers first, first + 1, ... of `count` numbers, with zeros after the last one.
template <class T>
inline Vec<float> numbers_of(const T* x, int64_t first, int64_t count) {
  const int64_t left = count - first;
  if (left >= kUnits) return load(x + first, Whole{});
  return left > 0 ? load(x + first, Tail{left}) : Vec<float>{};
}

/// Returns v rounded to bf16, to nearest even, as fp32. NaN stays NaN.
inline Words rounded_to_bf16(Vec<float> v) {
  const Words bits = (Words)v;
  const Words rounded = (bits & 0x7FFFFFFFu) > 0x7F800000u ? bits | 0x400000u : bits + 0x7FFFu + ((bits >> 16) & 1u);
  return rounded & 0xFFFF0000u;
}

/// Writes words 4 Lane to 4 Lane + 3 of four vectors, which belong to `Rows` rows, as units 4 Lane to 4 Lane + 3.
template <int Rows, int Lane>
inline void put_lane(const Words (&v)[4], int64_t count, int64_t pitch, uint32_t* out) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    if (4 * Lane + j >= count) return;
    const FourWords words = __builtin_shufflevector(v[j], v[j], 4 * Lane, 4 * Lane + 1, 4 * Lane + 2, 4 * Lane + 3);
    __builtin_memcpy(out + (4 * Lane + j) * pitch, &words, Rows * sizeof(uint32_t));
  }
}
template <int Rows, int... Lane>
inline void put_units(const Words (&v)[4], int64_t count, int64_t pitch, uint32_t* out,
                      std::integer_sequence<int, Lane...>) {
  (put_lane<Rows, Lane>(v, count, pitch, out), ...);
}

/// Writes units [first, end) of `Rows` rows, unit k of row i to out[k * pitch + i]. units(i, k) returns the units of
/// row i from k on.
template <int Rows, class Units>
inline __attribute__((always_inline)) void put_rows(int64_t first, int64_t end, int64_t pitch, uint32_t* out,
                                                    const Units& units) {
  using Lanes = std::make_integer_sequence<int, kUnits / 4>;
  for (int64_t k = first; k < end; k += kUnits) {
    Words v[4] = {};
#pragma GCC unroll 4
    for (int i = 0; i < Rows; ++i) v[i] = units(i, k);
    if (Rows == 1 && pitch == 1) {
      __builtin_memcpy(out + k, &v[0], end - k < kUnits ? static_cast<size_t>(end - k) * 4 : sizeof v[0]);
      continue;
    }
    transpose_fours(v);
    if (end - k >= kUnits)
      put_units<Rows>(v, kUnits, pitch, out + k * pitch, Lanes());
    else
      put_units<Rows>(v, end - k, pitch, out + k * pitch, Lanes());
  }
}

/// Calls body(first row, number of rows) for all rows, four at a time; the number is a constant.
template <class Body>
inline __attribute__((always_inline)) void for_fours(int64_t rows, const Body& body) {
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) body(row, std::integral_constant<int, 4>());
  if (rows - row == 3) body(row, std::integral_constant<int, 3>());
  if (rows - row == 2) body(row, std::integral_constant<int, 2>());
  if (rows - row == 1) body(row, std::integral_constant<int, 1>());
}

/// Writes rows of `count` units. of_row(row, k) returns the units of a row, whose address is given, from k on.
template <class OfRow>
inline __attribute__((always_inline)) void put_all(const RowsToLayOut& p, int64_t count, const OfRow& of_row) {
  constexpr int64_t kStrip = 64;  // units of all rows that are written before the next ones: they stay in L1
  auto* out = static_cast<uint32_t*>(p.out);
  const auto* x = static_cast<const char*>(p.x);
  if (p.by_row || p.pitch == 1) {
    for (int64_t row = 0; row < p.rows; ++row)
      put_rows<1>(0, count, 1, out + row * count, [&](int, int64_t k) { return of_row(x + row * p.stride, k); });
    return;
  }
  for (int64_t first = 0; first < count; first += kStrip)
    for_fours(p.rows, [&](int64_t row, auto rows) {
      put_rows<decltype(rows)::value>(first, first + kStrip < count ? first + kStrip : count, p.pitch, out + row,
                                      [&](int i, int64_t k) { return of_row(x + (row + i) * p.stride, k); });
    });
}

/// Calls body(a null pointer to the type of the rows).
template <class Body>
inline __attribute__((always_inline)) void with_type(Narrow type, const Body& body) {
  if (type == Narrow::None)
    body(static_cast<const float*>(nullptr));
  else if (type == Narrow::Bf16)
    body(static_cast<const Bf16*>(nullptr));
  else
    body(static_cast<const Half*>(nullptr));
}

void lay_out_float(const RowsToLayOut& p) {
  with_type(p.type, [&](auto* type) {
    put_all(p, p.padded, [&](const char* row, int64_t k) {
      return (Words)(numbers_of(reinterpret_cast<decltype(type)>(row), k, p.inputs) * p.factor);
    });
  });
}

void lay_out_widened(const RowsToLayOut& p) {
  with_type(p.type, [&](auto* type) {
    put_all(p, p.padded, [&](const char* row, int64_t k) {
      return rounded_to_bf16(numbers_of(reinterpret_cast<decltype(type)>(row), k, p.inputs));
    });
  });
}

void lay_out_bf16(const RowsToLayOut& p) {
  if (p.type == Narrow::Bf16)
    return put_all(p, p.padded / 2, [&](const char* row, int64_t k) { return words_of(row, k, 2 * p.inputs); });
  with_type(p.type, [&](auto* type) {
    put_all(p, p.padded / 2, [&](const char* row, int64_t k) {
      const auto* x = reinterpret_cast<decltype(type)>(row);
      const Words a = rounded_to_bf16(numbers_of(x, 2 * k, p.inputs)),
                  b = rounded_to_bf16(numbers_of(x, 2 * k + kUnits, p.inputs));
      return every_second<0>(a, b, UnitIndices()) >> 16 | every_second<1>(a, b, UnitIndices());
    });
  });
}

/// Codes of 8 bits: a unit has four.
void lay_out_bytes(const RowsToLayOut& p) {
  put_all(p, p.padded / 4, [&](const char* row, int64_t k) { return words_of(row, k, p.inputs); });
}

/// Codes of 4 bits, each in a byte: a unit has four in its lower halves and the next four in its upper ones.
void lay_out_halves(const RowsToLayOut& p) {
  put_all(p, p.padded / 8, [&](const char* row, int64_t k) {
    const Words a = words_of(row, 2 * k, p.inputs), b = words_of(row, 2 * k + kUnits, p.inputs);
    return (every_second<0>(a, b, UnitIndices()) & 0x0F0F0F0Fu) | (every_second<1>(a, b, UnitIndices()) & 0x0F0F0F0Fu)
                                                                      << 4;
  });
}

// Conversion of rows to codes.

/// Returns the largest magnitude of the numbers, or NaN if one of them is not finite.
template <class T>
inline float largest_magnitude(const T* x, int64_t count) {
  Vec<float> largest{}, not_finite{};  // not_finite is 0 or NaN
  for_vectors<float>(count, [&](int64_t k, auto part) {
    const Vec<float> numbers = load(x + k, part), magnitudes = (Vec<float>)((Words)numbers & 0x7FFFFFFFu);
    largest = magnitudes > largest ? magnitudes : largest;
    not_finite += 0.0f * numbers;
  });
  return max_of<float>(largest) + sum_of<float>(not_finite);
}

/// Returns the codes of 4 kUnits numbers from `first` on, one a byte. `code_of` leaves them in the low bytes of lanes.
template <class T, class CodeOf>
inline Words bytes_of(const T* x, int64_t first, int64_t count, const CodeOf& code_of) {
  Words codes[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) codes[j] = code_of(numbers_of(x, first + j * kUnits, count)) & 0xFFu;
  transpose_fours(codes);  // now the four codes of a unit are in one lane of the four vectors
  return across_fours(codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24, UnitIndices());
}

/// Returns the integers nearest to v, ties to even, in the low bits.
inline Words nearest_integers(Vec<float> v) { return (Words)(v + Simd<float>::kRoundingMagic); }

/// Returns the e4m3 codes nearest to v, ties to even. No |v| is above 448.
inline Words nearest_e4m3(Vec<float> v) {
  const Words sign = (Words)v >> 24 & 0x80u, magnitude = (Words)v & 0x7FFFFFFFu;
  // Below 2^-6 the numbers of e4m3 have steps of 2^-9, as those of fp32 from 2^14 on.
  const Words small = (Words)((Vec<float>)magnitude + 0x1p14f) - (141u << 23);
  const Words normal = (magnitude - (120u << 23) + 0x7FFFFu + (magnitude >> 20 & 1u)) >> 20;
  const Words code = magnitude < (121u << 23) ? small : normal;
  return sign | (magnitude > 0x7F800000u ? Words{} + 0x7Fu : code);  // 0x7F is NaN
}

template <int Rows, class T>
inline void put_codes(const RowsToLayOut& p, int64_t row, int64_t pitch, uint32_t* out) {
  const T* x[Rows];
  for (int i = 0; i < Rows; ++i)
    x[i] = reinterpret_cast<const T*>(static_cast<const char*>(p.x) + (row + i) * p.stride);
  const int64_t units = p.group / 4;
  for (int64_t g = 0; g * p.group < p.padded; ++g, out += units * pitch) {
    const int64_t first = g * p.group, left = p.inputs - first;
    const int64_t count = left < 0 ? 0 : left < p.group ? left : p.group;
    float inverse[Rows];
    Ints sums[Rows] = {};
    for (int i = 0; i < Rows; ++i) {
      const float largest = largest_magnitude(x[i] + first, count);
      inverse[i] = largest > 0 ? 127.0f / largest : 0;
      p.scales[g * p.pitch + row + i] = largest / 127.0f * p.factor;
    }
    put_rows<Rows>(0, units, pitch, out, [&](int i, int64_t k) {
      return bytes_of(x[i] + first, 4 * k, count, [&](Vec<float> numbers) {
        const Words codes = nearest_integers(numbers * inverse[i]);
        sums[i] += (Ints)codes << 24 >> 24;
        return codes;
      });
    });
    for (int i = 0; i < Rows; ++i) {
      int32_t sum = 0;
      for (int lane = 0; lane < kUnits; ++lane) sum += sums[i][lane];
      p.sums[g * p.pitch + row + i] = sum;
    }
  }
}

void lay_out_codes(const RowsToLayOut& p) {
  auto* out = static_cast<uint32_t*>(p.out);
  with_type(p.type, [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    if (p.by_row || p.pitch == 1) {
      for (int64_t row = 0; row < p.rows; ++row) put_codes<1, T>(p, row, 1, out + row * (p.padded / 4));
      return;
    }
    for_fours(p.rows, [&](int64_t row, auto rows) { put_codes<decltype(rows)::value, T>(p, row, p.pitch, out + row); });
  });
}

/// Writes rows of codes with a scale per row, which maps the largest magnitude to `most`.
template <class CodeOf>
void encode_rows(const RowsToLayOut& p, float most, const CodeOf& code_of) {
  constexpr float kMinMagnitude = 1e-30f;  // a row of zeros has a scale > 0
  constexpr int64_t kStep = 4 * kUnits;
  with_type(p.type, [&](auto* type) {
    using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    for (int64_t row = 0; row < p.rows; ++row) {
      const T* x = reinterpret_cast<const T*>(static_cast<const char*>(p.x) + row * p.stride);
      auto* out = static_cast<char*>(p.out) + row * p.inputs;
      const float largest = largest_magnitude(x, p.inputs);
      const float scale = (largest < kMinMagnitude ? kMinMagnitude : largest) / most;
      p.scales[row] = scale;
      for (int64_t k = 0; k < p.inputs; k += kStep) {
        const Words codes = bytes_of(x, k, p.inputs, [&](Vec<float> numbers) {
          // A quotient may be one last bit above `most`.
          const Vec<float> scaled = numbers / scale, high = scaled > most ? splat<float>(most) : scaled;
          return code_of(high < -most ? splat<float>(-most) : high);
        });
        __builtin_memcpy(out + k, &codes, static_cast<size_t>(smaller(kStep, p.inputs - k)));
      }
    }
  });
}
void encode_int8(const RowsToLayOut& p) { encode_rows(p, 127, nearest_integers); }
void encode_e4m3(const RowsToLayOut& p) { encode_rows(p, 448, nearest_e4m3); }

}  // namespace

}  // namespace colossal::ops
