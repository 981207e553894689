// Products with panels of fp32, bf16 and fp8 numbers; see prepacked_kernels.h.
#pragma once
#include "colossal/ops/products/panel_parts.h"

namespace colossal::ops {
namespace {

// Each of these types describes how a kind of panel is multiplied. A unit of a panel has kInputs elements of an output,
// which kSteps steps multiply with as many units of a row. A part of a block of rows has at most kSums sums.

// One element per lane.
struct Single {
  using Stored = float;
  using Weight = float;
  static constexpr RowLayout kLayout{};
  static constexpr int64_t kInputs = 1;
  static constexpr int kSteps = 1, kSums = kMaxSums;
  Vec<float> value;
  static Single weights(const float* p, int) { return {load(p, Whole{})}; }
  static Single number(const float* p) { return {splat<float>(*p)}; }
  static void add(Vec<float>& sum, Single a, Single b) { sum = multiply_add(a.value, b.value, sum); }
};

// Loads codes as integers, so that the upper bits are copies of the sign.
inline Ints widened(const int8_t* p) {
#if defined(__AVX512F__)
  return (Ints)_mm512_maskz_cvtepi8_epi32(0xFFFF, load_bytes<__m128i>(p));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_loadu_si64(p));
#elif defined(__SSE2__)
  const __m128i zeros = _mm_setzero_si128(), codes = _mm_unpacklo_epi8(zeros, _mm_cvtsi32_si128(load_four(p)));
  return (Ints)_mm_unpacklo_epi16(zeros, codes) >> 24;
#else
  typedef int8_t Bytes __attribute__((vector_size(kLanes<float>)));
  return __builtin_convertvector(load_bytes<Bytes>(p), Ints);
#endif
}

// One element per lane, of a weight in e4m3. Its exponent and mantissa are moved to their position in fp32; a factor
// then corrects the different exponent bias. Subnormal e4m3 values are subnormal in between, which is slow; few weights
// are that small.
struct SingleFp8 {
  using Stored = float;
  using Weight = int8_t;
  static constexpr RowLayout kLayout{};
  static constexpr int64_t kInputs = 1;
  static constexpr int kSteps = 1, kSums = kMaxSums;
  Vec<float> value;
  static SingleFp8 weights(const int8_t* p, int) {
    return {(Vec<float>)((widened(p) << 20) & static_cast<int32_t>(0x87F00000u)) * 0x1p120f};
  }
  static SingleFp8 number(const float* p) { return {splat<float>(*p)}; }
  static void add(Vec<float>& sum, SingleFp8 a, SingleFp8 b) { sum = multiply_add(a.value, b.value, sum); }
};

#if defined(__AVX512BF16__)
// Two neighbouring bf16 elements per lane; products are added in fp32.
struct Pairs {
  using Stored = uint32_t;
  using Weight = uint32_t;
  static constexpr RowLayout kLayout{};
  static constexpr int64_t kInputs = 2;
  static constexpr int kSteps = 1, kSums = kMaxSums;
  __m512bh bits;
  static Pairs weights(const uint32_t* p, int) { return {(__m512bh)load_bytes<__m512i>(p)}; }
  static Pairs number(const uint32_t* p) { return {(__m512bh)_mm512_set1_epi32(load_four(p))}; }
  static void add(Vec<float>& sum, Pairs a, Pairs b) {
    sum = (Vec<float>)_mm512_dpbf16_ps((__m512)sum, a.bits, b.bits);
  }
};
#else
// Two neighbouring bf16 elements per lane of a weight, of which each step widens one; rows are in fp32.
struct Pairs {
  using Stored = float;
  using Weight = uint32_t;
  static constexpr RowLayout kLayout{.widened = true};
  static constexpr int64_t kInputs = 2;
  static constexpr int kSteps = 2, kSums = kFewerSums;
  Vec<float> value;
  static Pairs weights(const uint32_t* p, int step) {
    const Words words = load_bytes<Words>(p);
    return {(Vec<float>)(step == 0 ? words << 16 : words & 0xFFFF0000u)};
  }
  static Pairs number(const float* p) { return {splat<float>(*p)}; }
  static void add(Vec<float>& sum, Pairs a, Pairs b) { sum = multiply_add(a.value, b.value, sum); }
};
#endif

// Adds the products with `count` units of the panel's vectors from `w` on to the sums of the rows from `x` on.
template <class Number, int Rows, int Vectors>
inline void numbers_part(const typename Number::Stored* x, int64_t pitch, const typename Number::Weight* w,
                         int64_t count, float (*out)[kOutputs]) {
  Vec<float> sums[Rows][Vectors];
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sums[i][v] = load(out[i] + v * kLanes<float>, Whole{});
  for (int64_t k = 0; k < count; ++k, w += kOutputs)
#pragma GCC unroll 2
    for (int step = 0; step < Number::kSteps; ++step, x += pitch) {
      Number weights[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) {
        weights[v] = Number::weights(w + v * kLanes<float>, step);
        // Keeps the compiler from loading a weight again for each row.
        if constexpr (std::is_same_v<Number, Single> && Rows > 1 && kVectorBytes > 16) asm("" : "+v"(weights[v].value));
      }
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i) {
        const Number number = Number::number(x + i);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) Number::add(sums[i][v], weights[v], number);
      }
    }
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) store(out[i] + v * kLanes<float>, sums[i][v], Whole{});
}

template <class Number>
void multiply_numbers(const PanelProduct& p, int64_t rows) {
  PanelSums sums;
  clear(sums, rows);
  const int64_t at_a_time = inputs_at_a_time<Number::kSums>(p.inputs, rows, Number::kInputs);
  for (int64_t input = 0; input < p.inputs; input += at_a_time) {
    const int64_t unit = input / Number::kInputs, end = smaller(p.inputs, input + at_a_time) / Number::kInputs;
    const auto* x = static_cast<const typename Number::Stored*>(p.block) + unit * Number::kSteps * rows;
    const auto* w = static_cast<const typename Number::Weight*>(p.panel) + unit * kOutputs;
    for_parts<Number::kSums>(rows, [&](int64_t row, auto count, int first, auto vectors) {
      numbers_part<Number, decltype(count)::value, decltype(vectors)::value>(
          x + row, rows, w + first * kLanes<float>, end - unit,
          reinterpret_cast<float(*)[kOutputs]>(&sums.of[row][first * kLanes<float>]));
    });
  }
  if constexpr (std::is_same_v<Number, SingleFp8>) {
    const auto* scales = reinterpret_cast<const float*>(static_cast<const char*>(p.panel) + p.inputs * kOutputs);
    for (int64_t i = 0; i < rows; ++i)
      for (int j = 0; j < kOutputs; ++j) sums.of[i][j] *= scales[j];
  }
  write_panel(p, rows, sums);
}

}  // namespace
}  // namespace colossal::ops
