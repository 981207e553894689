// Products with panels of 8-bit and 4-bit codes; see prepacked_kernels.h.
#pragma once
#include "colossal/ops/products/panel_parts.h"

namespace colossal::ops {
namespace {

// Sums of products of four neighbouring 8-bit codes, in 32 bits: exact. `x` holds four signed codes. If kTakesSumsAway,
// `w` holds unsigned codes, and first_sum() subtracts what an offset of 128 adds. Otherwise `w` holds 128 + code.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kTakesSumsAway = true;
template <int Bits>
constexpr int kCodeSums = Bits == 8 ? kMaxSums : kFewerSums;
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
  // Written in assembly, because the compiler would keep copies of the sum and run out of registers.
  const Ints numbers = x - Ints{};
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(numbers));
#else
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(w), "x"(numbers));
#endif
}
#elif defined(__AVX2__)
#define COLOSSAL_ADDS_PAIRS
constexpr bool kTakesSumsAway = false;
template <int Bits>
constexpr int kCodeSums = kFewerSums;
typedef int16_t Shorts __attribute__((vector_size(kVectorBytes)));
// Adds the products of two neighbouring codes. `w` holds unsigned codes.
inline void add_pairs(Shorts& sum, PanelBytes w, int32_t x) {
  const Ints numbers = x - Ints{};
  Shorts products;  // in assembly, because the compiler would keep many of them and run out of registers
  asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(sum), "=v"(products) : "v"(w), "v"(numbers));
}
inline Ints sums_of_pairs(Shorts pairs) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_madd_epi16((__m512i)pairs, _mm512_set1_epi16(1));
#else
  return (Ints)_mm256_madd_epi16((__m256i)pairs, _mm256_set1_epi16(1));
#endif
}
// The sum of two products fits 16 bits, because codes are within 127. The sign of x is moved to the codes of w.
inline void add_products(Ints& sum, PanelBytes w, int32_t x) {
#if defined(__AVX512BW__)
  const __m512i numbers = _mm512_set1_epi32(x), codes = _mm512_xor_si512((__m512i)w, _mm512_set1_epi8(-128));
  const __m512i turned = _mm512_mask_sub_epi8(codes, _mm512_movepi8_mask(numbers), _mm512_setzero_si512(), codes);
  sum += sums_of_pairs((Shorts)_mm512_maddubs_epi16(_mm512_abs_epi8(numbers), turned));
#else
  const __m256i numbers = _mm256_set1_epi32(x), codes = _mm256_xor_si256((__m256i)w, _mm256_set1_epi8(-128));
  const __m256i turned = _mm256_sign_epi8(codes, numbers);
  sum += sums_of_pairs((Shorts)_mm256_maddubs_epi16(_mm256_abs_epi8(numbers), turned));
#endif
}
#else
constexpr bool kTakesSumsAway = true;
template <int Bits>
constexpr int kCodeSums = kMaxSums;
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

// Calls add(row, vector, codes of the weight, codes of x) for `count` rows of a panel of 4 bits: first for the lower
// halves of their bytes, then for the upper ones.
template <int Rows, int Vectors, class Add>
inline __attribute__((always_inline)) void for_halves(const int32_t* x, int64_t pitch, const char* w, int64_t count,
                                                      const Add& add) {
  for (int64_t k = 0; k < count; ++k, w += 4 * kOutputs)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, x += pitch) {
      PanelBytes weights[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v)
        weights[v] = (PanelBytes)(load_bytes<Words>(w + v * kVectorBytes) >> (4 * half)) & 0x0F;
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) add(i, v, weights[v], x[i]);
    }
}

// Scales of a group for a vector of outputs, and its minima if it has some.
struct GroupScales {
  Vec<float> scale, minimum;
  bool minima;
};

// Returns the scales of outputs `first` and following. `scales` points to the end of the group's codes.
inline __attribute__((always_inline)) GroupScales group_scales(const PanelProduct& p, const char* scales, int first) {
  const Half* halves = reinterpret_cast<const Half*>(scales) + first;
  return {load(halves, Whole{}), p.minima ? load(halves + kOutputs, Whole{}) : Vec<float>{}, p.minima};
}

// Returns a row's sums in fp32 plus a group's exact sums of products. `of_row` is the row's scale in this group,
// `sum_of_codes` the sum of its codes.
inline __attribute__((always_inline)) Vec<float> plus_scaled(Vec<float> sum, const GroupScales& of_group, Ints exact,
                                                             float of_row, int32_t sum_of_codes) {
  sum = multiply_add(__builtin_convertvector(exact, Vec<float>), of_group.scale * of_row, sum);
  const float minima_of_row = of_row * static_cast<float>(sum_of_codes);
  return of_group.minima ? multiply_add(of_group.minimum, splat<float>(minima_of_row), sum) : sum;
}
inline __attribute__((always_inline)) void add_scaled(const GroupScales& of_group, Ints exact, float of_row,
                                                      int32_t sum_of_codes, float* to) {
  store(to, plus_scaled(load(to, Whole{}), of_group, exact, of_row, sum_of_codes), Whole{});
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
        for (int v = 0; v < Vectors; ++v) add_products(sums[i][v], weights[v], x[k * pitch + i]);
    }
    return;
  }
#if defined(COLOSSAL_ADDS_PAIRS)
  // Eight products of pairs are within 8 * 2 * 15 * 127 = 30480, so their sum fits 16 bits.
  constexpr int64_t kCount = 4;
  for (int64_t k = 0; k < group / 8; k += kCount) {
    Shorts pairs[Rows][Vectors] = {};
    const auto add = [&](int i, int v, PanelBytes codes, int32_t numbers)
                         __attribute__((always_inline)) { add_pairs(pairs[i][v], codes, numbers); };
    for_halves<Rows, Vectors>(x + 2 * k * pitch, pitch, w + k * 4 * kOutputs, smaller(kCount, group / 8 - k), add);
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[i][v] += sums_of_pairs(pairs[i][v]);
  }
#else
  const auto add = [&](int i, int v, PanelBytes codes, int32_t numbers)
                       __attribute__((always_inline)) { add_products(sums[i][v], codes, numbers); };
  for_halves<Rows, Vectors>(x, pitch, w, group / 8, add);
#endif
}

// Adds the products of the groups [begin, end) to the sums.
template <int Bits, int Rows, int Vectors>
inline void codes_part(const PanelProduct& p, int64_t begin, int64_t end, int64_t row, int64_t pitch, int first,
                       PanelSums& out) {
  const int64_t codes_bytes = p.group * Bits / 8 * kOutputs, halves = kOutputs * (p.minima ? 2 : 1);
  const int64_t group_bytes = codes_bytes + halves * static_cast<int64_t>(sizeof(Half));
  // The sums of few rows stay in registers between groups. In memory each group would wait for the store of the last.
  constexpr bool kStay = 3 * Rows * Vectors <= kMaxSums;
  Vec<float> totals[kStay ? Rows : 1][kStay ? Vectors : 1];
  const auto for_totals = [&](const auto& body) __attribute__((always_inline)) {
    if constexpr (kStay) {
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) body(totals[i][v], &out.of[row + i][(first + v) * kLanes<float>]);
    }
  };
  for_totals([](Vec<float>& total, const float* in) __attribute__((always_inline)) { total = load(in, Whole{}); });
  for (int64_t g = begin; g < end; ++g) {
    const char* w = static_cast<const char*>(p.panel) + g * group_bytes;
    const int32_t* x = static_cast<const int32_t*>(p.block) + g * (p.group / 4) * pitch + row;
    Ints sums[Rows][Vectors];
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[i][v] = first_sum<Bits>(p.sums[g * pitch + row + i], p.minima) - Ints{};
    group_sums<Bits, Rows, Vectors>(x, pitch, w + first * kVectorBytes, p.group, sums);
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      const GroupScales of_group = group_scales(p, w + codes_bytes, (first + v) * kLanes<float>);
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i) {
        const int64_t index = g * pitch + row + i;
        if constexpr (kStay)
          totals[i][v] = plus_scaled(totals[i][v], of_group, sums[i][v], p.scales[index], p.sums[index]);
        else
          add_scaled(of_group, sums[i][v], p.scales[index], p.sums[index],
                     &out.of[row + i][(first + v) * kLanes<float>]);
      }
    }
  }
  for_totals([](Vec<float> total, float* to) __attribute__((always_inline)) { store(to, total, Whole{}); });
}

template <int Bits>
void multiply_codes(const PanelProduct& p, int64_t rows) {
  PanelSums sums;
  clear(sums, rows);
  const int64_t groups = p.inputs / p.group;
  const int64_t at_a_time = inputs_at_a_time<kCodeSums<Bits>>(p.inputs, rows, p.group) / p.group;
  for (int64_t g = 0; g < groups; g += at_a_time)
    for_parts<kCodeSums<Bits>>(rows, [&](int64_t row, auto count, int first, auto vectors) {
      codes_part<Bits, decltype(count)::value, decltype(vectors)::value>(p, g, smaller(groups, g + at_a_time), row,
                                                                         rows, first, sums);
    });
  write_panel(p, rows, sums);
}

}  // namespace
}  // namespace colossal::ops
