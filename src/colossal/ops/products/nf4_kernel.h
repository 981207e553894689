// Bodies of the kernels of NF4 codes; see ops/products/nf4_weight.h. The 16 numbers of a block are computed once, in a
// table that fits one or two registers. Codes are looked up there.
#pragma once
#include "colossal/ops/products/nf4_levels.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

/// The numbers of a block's codes.
template <class T>
struct alignas(64) Nf4Table {
  T of[16];
};

template <class T>
inline Nf4Table<T> nf4_table(float absmax, bool rounded) {
  Nf4Table<T> table;
  for (int i = 0; i < 16; i += kLanes<float>) {
    Vec<float> numbers = load(kNf4Levels + i, Whole{}) * absmax;
    if constexpr (std::is_same_v<T, double>) {
      for (int lane = 0; lane < kLanes<float>; ++lane) table.of[i + lane] = numbers[lane];
    } else {
      if (std::is_same_v<T, float> && rounded) {
        Bf16 halves[kLanes<float>];
        store(halves, numbers, Whole{});
        numbers = load(halves, Whole{});
      }
      store(table.of + i, numbers, Whole{});
    }
  }
  return table;
}

#if defined(__AVX512F__)
// Operators of vectors, and instructions with masks of ones, because g++ 12 takes the plain ones for uninitialized.
typedef uint64_t Nf4Longs __attribute__((vector_size(kVectorBytes)));
inline void look_up_nf4(const Nf4Table<float>& table, const uint8_t* codes, float* out) {
  const __m512 numbers = _mm512_load_ps(table.of);
#pragma GCC unroll 4
  for (int i = 0; i < kNf4Block; i += 16) {
    // Lanes 2k and 2k + 1 get the upper half of byte k, and the byte, of which the look-up reads the lower half.
    const auto bytes = (Nf4Longs)_mm512_maskz_cvtepu8_epi64(0xFF, _mm_loadu_si64(codes + i / 2));
    const auto code = (__m512i)(bytes >> 4 | bytes << 32);
    _mm512_storeu_ps(out + i, _mm512_maskz_permutexvar_ps(0xFFFF, code, numbers));
  }
}
inline void look_up_nf4(const Nf4Table<Bf16>& table, const uint8_t* codes, Bf16* out) {
  const __m512i numbers = _mm512_maskz_loadu_epi16(0xFFFF, table.of);
#pragma GCC unroll 2
  for (int i = 0; i < kNf4Block; i += 32) {
    const auto bytes = (Words)_mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128((const __m128i*)(codes + i / 2)));
    const auto code = (__m512i)(bytes >> 4 | (bytes & 15u) << 16);
    _mm512_storeu_si512(out + i, _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, code, numbers));
  }
}
#elif defined(__AVX2__)
inline void look_up_nf4(const Nf4Table<float>& table, const uint8_t* codes, float* out) {
  const __m256 low = _mm256_load_ps(table.of), high = _mm256_load_ps(table.of + 8);
#pragma GCC unroll 8
  for (int i = 0; i < kNf4Block; i += 8) {
    int32_t four;
    __builtin_memcpy(&four, codes + i / 2, sizeof four);
    const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    const __m256i code = _mm256_or_si256(_mm256_srli_epi64(bytes, 4), _mm256_slli_epi64(bytes, 32));
    const __m256 is_high = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28));
    _mm256_storeu_ps(
        out + i, _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, code), _mm256_permutevar8x32_ps(high, code), is_high));
  }
}
inline void look_up_nf4(const Nf4Table<Bf16>& table, const uint8_t* codes, Bf16* out) {
  const __m128i halves = _mm_set1_epi8(15);
  const __m128i first = _mm_load_si128((const __m128i*)table.of), second = _mm_load_si128((const __m128i*)table.of + 1);
  const __m128i bytes_of_words = _mm_set1_epi16(0xFF);
  const __m128i lower = _mm_packus_epi16(_mm_and_si128(first, bytes_of_words), _mm_and_si128(second, bytes_of_words));
  const __m128i upper = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
#pragma GCC unroll 2
  for (int i = 0; i < kNf4Block; i += 32) {
    const __m128i bytes = _mm_loadu_si128((const __m128i*)(codes + i / 2));
    const __m128i even = _mm_and_si128(_mm_srli_epi16(bytes, 4), halves), odd = _mm_and_si128(bytes, halves);
    const __m128i code[2] = {_mm_unpacklo_epi8(even, odd), _mm_unpackhi_epi8(even, odd)};
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m128i low = _mm_shuffle_epi8(lower, code[half]), high = _mm_shuffle_epi8(upper, code[half]);
      auto* to = (__m128i*)(out + i + 16 * half);
      _mm_storeu_si128(to, _mm_unpacklo_epi8(low, high));
      _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(low, high));
    }
  }
}
#endif
template <class T>
inline void look_up_nf4(const Nf4Table<T>& table, const uint8_t* codes, T* out) {
  for (int i = 0; i < kNf4Block; i += 2, ++codes) {
    out[i] = table.of[*codes >> 4];
    out[i + 1] = table.of[*codes & 15];
  }
}

template <class T>
void decode_nf4(const Nf4Run& run, T* out) {
  const uint8_t* codes = run.codes;
  const float* absmax = run.absmax;
  int64_t skipped = run.skipped;
  for (int64_t left = run.count; left > 0; codes += kNf4Block / 2, ++absmax, skipped = 0) {
    const Nf4Table<T> table = nf4_table<T>(*absmax, run.rounded);
    const int64_t count = left < kNf4Block - skipped ? left : kNf4Block - skipped;
    if (count == kNf4Block) {
      look_up_nf4(table, codes, out);
    } else {
      T block[kNf4Block];
      look_up_nf4(table, codes, block);
      __builtin_memcpy(out, block + skipped, count * sizeof(T));
    }
    out += count, left -= count;
  }
}

inline float encode_nf4(const float* values, int64_t count, uint8_t* codes) {
  using Lanes = Simd<float>::Integers;
  // Bits without the sign have the order of magnitudes, and those of NaN and infinity are the largest.
  Lanes most{};
  for_vectors<float>(count, [&](int64_t i, auto part) {
    const Lanes bits = (Lanes)load(values + i, part) & 0x7FFFFFFF;
    most = bits > most ? bits : most;
  });
  int32_t largest = 0;
  for (int lane = 0; lane < kLanes<float>; ++lane) largest = most[lane] > largest ? most[lane] : largest;
  float absmax;
  __builtin_memcpy(&absmax, &largest, sizeof absmax);
  const float factor = 1 / (absmax > kNf4MinAbsmax ? absmax : kNf4MinAbsmax);
  int32_t of_numbers[kNf4Block + kLanes<float>];  // room to write the last vector whole
  for_vectors<float>(count, [&](int64_t i, auto part) {
    const Vec<float> number = load(values + i, part) * factor;
    Lanes code{};
    for (const float border : kNf4Borders.of) code -= number > border;  // a true comparison is -1
    __builtin_memcpy(of_numbers + i, &code, sizeof code);
  });
  constexpr int32_t kZero = 7;
  for (int64_t i = count; i < kNf4Block; ++i) of_numbers[i] = kZero;
  for (int64_t i = 0; i < kNf4Block; i += 2)
    codes[i / 2] = static_cast<uint8_t>(of_numbers[i] << 4 | of_numbers[i + 1]);
  return absmax;
}

}  // namespace
}  // namespace colossal::ops
