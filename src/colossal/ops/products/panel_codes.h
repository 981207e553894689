// Products with panels of 8-bit and 4-bit codes; see prepacked_kernels.h.
#pragma once
#include "colossal/ops/products/panel_parts.h"

namespace colossal::ops {
namespace {

// Sums of products of four neighbouring 8-bit codes, in 32 bits: exact. `w` holds unsigned codes, `x` four signed
// codes. kSigned: w holds 128 + code and the sum over codes is required. If kTakesSumsAway, first_sum() subtracts the
// products with 128.
#if defined(__AVX512VNNI__)
constexpr bool kTakesSumsAway = true;
template <bool kSigned>
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  // Written in assembly, because the compiler would keep copies of the sum and run out of registers.
  const __m512i numbers = _mm512_set1_epi32(x);
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(numbers));
}
#elif defined(__AVX512BW__)
// The sum of two products fits 16 bits: codes are within 127, or within 15.
constexpr bool kTakesSumsAway = false;
template <bool kSigned>
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  const __m512i numbers = _mm512_set1_epi32(x);
  __m512i pairs;
  if constexpr (kSigned) {
    const __m512i codes = _mm512_xor_si512((__m512i)w, _mm512_set1_epi8(-128));
    const __m512i turned = _mm512_mask_sub_epi8(codes, _mm512_movepi8_mask(numbers), _mm512_setzero_si512(), codes);
    pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(numbers), turned);
  } else {
    pairs = _mm512_maddubs_epi16((__m512i)w, numbers);
  }
  sum += (Ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}
#elif defined(__AVX2__)
// As for AVX-512BW, the sum of two products fits 16 bits.
constexpr bool kTakesSumsAway = false;
template <bool kSigned>
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  const __m256i numbers = _mm256_set1_epi32(x), ones = _mm256_set1_epi16(1);
  __m256i pairs;
  if constexpr (kSigned)
    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(numbers),
                                 _mm256_sign_epi8(_mm256_xor_si256((__m256i)w, _mm256_set1_epi8(-128)), numbers));
  else
    pairs = _mm256_maddubs_epi16((__m256i)w, numbers);
  sum += (Ints)_mm256_madd_epi16(pairs, ones);
}
#else
constexpr bool kTakesSumsAway = true;
template <bool kSigned>
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  const Words words = (Words)w;
  for (int byte = 0; byte < 4; ++byte)
    sum += (Ints)((words >> (8 * byte)) & 0xFFu) * static_cast<int32_t>(static_cast<int8_t>(x >> (8 * byte)));
}
#endif

// Returns the initial value of a group's sums. It corrects for the offset of stored codes: 128 for 8 bits; 8 for 4 bits
// without minima.
template <int Bits>
inline int32_t first_sum(int32_t sum_of_codes, bool minima) {
  if constexpr (Bits == 8) return kTakesSumsAway ? -128 * sum_of_codes : 0;
  return minima ? 0 : -8 * sum_of_codes;
}

template <int Bits, int Rows, int Vectors>
inline __attribute__((always_inline)) void group_sums(const int32_t* x, int64_t pitch, const char* w, int64_t group,
                                                      Ints (&sums)[Rows][Vectors]) {
  if constexpr (Bits == 8) {
    for (int64_t k = 0; k < group / 4; ++k) {
      PanelBytes weights[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) weights[v] = load_bytes<PanelBytes>(w + k * 4 * kOutputs + v * kVectorBytes);
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) add_products<true>(sums[i][v], weights[v], x[k * pitch + i]);
    }
  } else {
    for (int64_t k = 0; k < group / 8; ++k) {
      PanelBytes lower[Vectors], upper[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        const PanelBytes both = load_bytes<PanelBytes>(w + k * 4 * kOutputs + v * kVectorBytes);
        lower[v] = both & 0x0F;
        upper[v] = (PanelBytes)((Words)both >> 4) & 0x0F;
      }
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) {
          add_products<false>(sums[i][v], lower[v], x[2 * k * pitch + i]);
          add_products<false>(sums[i][v], upper[v], x[(2 * k + 1) * pitch + i]);
        }
    }
  }
}

template <int Bits, int Rows, int Vectors>
inline void codes_part(const PanelProduct& p, int64_t row, int64_t pitch, int first, PanelSums& out) {
  const int64_t groups = p.inputs / p.group;
  const int64_t codes_bytes = p.group * Bits / 8 * kOutputs, halves = kOutputs * (p.minima ? 2 : 1);
  const char* w = static_cast<const char*>(p.panel);
  const int32_t* x = static_cast<const int32_t*>(p.block) + row;
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) store(&out.of[row + i][(first + v) * kLanes<float>], Vec<float>{}, Whole{});
  for (int64_t g = 0; g < groups; ++g) {
    Ints sums[Rows][Vectors];
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[i][v] = first_sum<Bits>(p.sums[g * pitch + row + i], p.minima) - Ints{};
    group_sums<Bits, Rows, Vectors>(x, pitch, w + first * kVectorBytes, p.group, sums);
    const Half* scales = reinterpret_cast<const Half*>(w + codes_bytes) + first * kLanes<float>;
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const Vec<float> scale = load(scales + v * kLanes<float>, Whole{});
      const Vec<float> minimum = p.minima ? load(scales + kOutputs + v * kLanes<float>, Whole{}) : Vec<float>{};
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i) {
        const float of_row = p.scales[g * pitch + row + i];
        float* to = &out.of[row + i][(first + v) * kLanes<float>];
        Vec<float> sum = load(to, Whole{}) + __builtin_convertvector(sums[i][v], Vec<float>) * (scale * of_row);
        if (p.minima) sum += minimum * (of_row * static_cast<float>(p.sums[g * pitch + row + i]));
        store(to, sum, Whole{});
      }
    }
    x += p.group / 4 * pitch;
    w += codes_bytes + halves * static_cast<int64_t>(sizeof(Half));
  }
}

template <int Bits>
void multiply_codes(const PanelProduct& p, int64_t rows) {
  PanelSums sums;
  for_parts(rows, [&](int64_t row, auto count, int first, auto vectors) {
    codes_part<Bits, decltype(count)::value, decltype(vectors)::value>(p, row, rows, first, sums);
  });
  write_panel(p, rows, sums);
}

}  // namespace
}  // namespace colossal::ops
