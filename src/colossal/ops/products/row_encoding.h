// Conversion of rows to codes; see prepacked_kernels.h.
#pragma once
#include "colossal/ops/products/row_units.h"

namespace colossal::ops {
namespace {

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
