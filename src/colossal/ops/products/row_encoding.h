// Conversion of rows to codes; see prepacked_kernels.h.
#pragma once
#include "colossal/ops/products/row_units.h"

namespace colossal::ops {
namespace {

/// Scale of a group of numbers, and the factor that makes codes of them.
struct GroupScale {
  float scale, inverse;
};

template <class T>
inline GroupScale scale_of(const T* x, int64_t count) {
  Vec<float> largest{}, not_finite{};  // not_finite is 0, or NaN, which makes the scale NaN
  for_vectors<float>(count, [&](int64_t k, auto part) {
    const Vec<float> numbers = load(x + k, part), magnitudes = (Vec<float>)((Words)numbers & 0x7FFFFFFFu);
    largest = magnitudes > largest ? magnitudes : largest;
    not_finite += 0.0f * numbers;
  });
  const float most = max_of<float>(largest);
  return {most / 127.0f + sum_of<float>(not_finite), most > 0 ? 127.0f / most : 0};
}

/// Returns the codes of 4 kUnits numbers from `first` on, in units of four, and adds them to `sums`.
template <class T>
inline Words codes_of(const T* x, int64_t first, int64_t count, float inverse, Ints& sums) {
  Words codes[4];
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    // Adding kRoundingMagic rounds to an integer, ties to even, in the low bits.
    const Vec<float> rounded = numbers_of(x, first + j * kUnits, count) * inverse + Simd<float>::kRoundingMagic;
    sums += (Ints)rounded << 24 >> 24;
    codes[j] = (Words)rounded & 0xFFu;
  }
  transpose_fours(codes);  // now the four codes of a unit are in one lane of the four vectors
  return across_fours(codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24, UnitIndices());
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
      const GroupScale scale = scale_of(x[i] + first, count);
      inverse[i] = scale.inverse;
      p.scales[g * p.pitch + row + i] = scale.scale * p.factor;
    }
    put_rows<Rows>(0, units, pitch, out,
                   [&](int i, int64_t k) { return codes_of(x[i] + first, 4 * k, count, inverse[i], sums[i]); });
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

}  // namespace
}  // namespace colossal::ops
