// Products with panels of fp32, bf16 and fp8 numbers; see prepacked_kernels.h.
#pragma once
#include "colossal/ops/products/panel_parts.h"

namespace colossal::ops {
namespace {

// Each of these types describes how a kind of panel is multiplied. A unit of a panel has kInputs elements of an output,
// which kSteps steps multiply with as many units of a row. A part of a block of rows has at most kSums sums. If
// kScales is set, 32 scales in fp32 follow the numbers of a panel, and sums are multiplied by them and by kFactor.
// Where one part reads a panel, it prefetches the weights that are kAhead bytes further on. 0 leaves that to the
// processor, which is faster where memory alone sets the pace.

// One element per lane.
struct Single {
  using Stored = float;
  using Weight = float;
  static constexpr RowLayout kLayout{};
  static constexpr int64_t kInputs = 1, kAhead = 0;
  static constexpr int kSteps = 1, kSums = kMaxSums;
  static constexpr bool kScales = false;
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

// One element per lane, of a weight in e4m3. Its exponent and mantissa are moved to their position in fp32, which makes
// it 2^120 times too small, as the exponent biases differ. The factor of the rows, and kFactor, make up for that
// without a multiplication for each weight. Subnormal e4m3 values are subnormal in fp32, too, which is slow; few
// weights are that small.
struct SingleFp8 {
  using Stored = float;
  using Weight = int8_t;
  static constexpr RowLayout kLayout{};
  static constexpr int64_t kInputs = 1, kAhead = 2048;
  static constexpr int kSteps = 1, kSums = kMaxSums;
  static constexpr bool kScales = true;
  static constexpr float kFactor = 0x1p120f / kFp8RowFactor;
  Vec<float> value;
  static SingleFp8 weights(const int8_t* p, int) {
    return {(Vec<float>)((widened(p) << 20) & static_cast<int32_t>(0x87F00000u))};
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
  static constexpr int64_t kInputs = 2, kAhead = 0;
  static constexpr int kSteps = 1, kSums = kMaxSums;
  static constexpr bool kScales = false;
  __m512bh bits;
  static Pairs weights(const uint32_t* p, int) { return {(__m512bh)load_bytes<__m512i>(p)}; }
  static Pairs number(const uint32_t* p) { return {(__m512bh)_mm512_set1_epi32(load_four(p))}; }
  static void add(Vec<float>& sum, Pairs a, Pairs b) {
    sum = (Vec<float>)_mm512_dpbf16_ps((__m512)sum, a.bits, b.bits);
  }
};

// The upper and the lower bytes of the bf16 numbers that equal the 128 positive codes of e4m3. 0x7F is NaN.
struct Fp8Bytes {
  alignas(64) uint8_t upper[128], lower[128];
};
constexpr Fp8Bytes fp8_bytes() {
  Fp8Bytes bytes{};
  for (int code = 0; code < 128; ++code) {
    int exponent = code >> 3, mantissa = code & 7;
    if (exponent == 0 && mantissa != 0) {  // subnormal: bf16 has a larger range, so the number becomes normal
      exponent = 1;
      while (mantissa < 8) mantissa *= 2, --exponent;
      mantissa -= 8;
    }
    const int bits = code == 0 ? 0 : code == 127 ? 0x7FC0 : (exponent + 120) << 7 | mantissa << 4;
    bytes.upper[code] = static_cast<uint8_t>(bits >> 8);
    bytes.lower[code] = static_cast<uint8_t>(bits);
  }
  return bytes;
}
alignas(64) constexpr Fp8Bytes kFp8Bytes = fp8_bytes();

// Positions of the bytes of 16 pairs: lower and upper byte of an output's first input, then of its second. The lower
// bytes of all numbers are bytes 0 to 63, the upper ones 64 to 127.
struct PairBytes {
  alignas(64) uint8_t of[2][64];
};
constexpr PairBytes pair_bytes() {
  PairBytes bytes{};
  for (int vector = 0; vector < 2; ++vector)
    for (int i = 0; i < 64; ++i)
      bytes.of[vector][i] = static_cast<uint8_t>(i % 2 * 64 + i % 4 / 2 * kOutputs + vector * kLanes<float> + i / 4);
  return bytes;
}
alignas(64) constexpr PairBytes kPairBytes = pair_bytes();

// Two neighbouring elements per lane, of a weight in e4m3 whose codes are looked up as bf16 numbers. A unit has the
// codes of one input of all outputs, then those of the next input.
struct PairsFp8 {
  using Stored = uint32_t;
  using Weight = uint16_t;
  static constexpr int64_t kInputs = 2, kAhead = 0;
  static constexpr int kSteps = 1, kSums = kMaxSums;
  static constexpr bool kScales = true;
  static constexpr float kFactor = 1;
  __m512bh bits;
  template <int Vectors>
  static void load_weights(PairsFp8 (&weights)[Vectors], const uint16_t* p, int) {
    static_assert(Vectors == kPanelVectors);
    const auto table = [](const uint8_t* bytes) { return load_bytes<__m512i>(bytes); };
    const __m512i codes = load_bytes<__m512i>(p);
    const __m512i lower = _mm512_permutex2var_epi8(table(kFp8Bytes.lower), codes, table(kFp8Bytes.lower + 64));
    __m512i upper = _mm512_permutex2var_epi8(table(kFp8Bytes.upper), codes, table(kFp8Bytes.upper + 64));
    constexpr int kFirstOrBoth = 0xF8;  // a | (b & c)
    upper = _mm512_ternarylogic_epi32(upper, codes, _mm512_set1_epi8(static_cast<char>(0x80)), kFirstOrBoth);
#pragma GCC unroll 2
    for (int v = 0; v < Vectors; ++v)
      weights[v].bits = (__m512bh)_mm512_permutex2var_epi8(lower, table(kPairBytes.of[v]), upper);
  }
  static PairsFp8 number(const uint32_t* p) { return {(__m512bh)_mm512_set1_epi32(load_four(p))}; }
  static void add(Vec<float>& sum, PairsFp8 a, PairsFp8 b) {
    sum = (Vec<float>)_mm512_dpbf16_ps((__m512)sum, a.bits, b.bits);
  }
};
#else
// Two neighbouring bf16 elements per lane of a weight, of which each step widens one; rows are in fp32.
struct Pairs {
  using Stored = float;
  using Weight = uint32_t;
  static constexpr RowLayout kLayout{.widened = true};
  static constexpr int64_t kInputs = 2, kAhead = 1024;
  static constexpr int kSteps = 2, kSums = kFewerSums;
  static constexpr bool kScales = false;
  Vec<float> value;
  static Pairs weights(const uint32_t* p, int step) {
    const Words words = load_bytes<Words>(p);
    return {(Vec<float>)(step == 0 ? words << 16 : words & 0xFFFF0000u)};
  }
  static Pairs number(const float* p) { return {splat<float>(*p)}; }
  static void add(Vec<float>& sum, Pairs a, Pairs b) { sum = multiply_add(a.value, b.value, sum); }
};
#endif

// Loads the weights of a step for `Rows` rows.
template <int Rows, class Number, int Vectors>
inline void load_weights(Number (&weights)[Vectors], const typename Number::Weight* w, int step) {
  if constexpr (requires { Number::load_weights(weights, w, step); }) {
    Number::load_weights(weights, w, step);
  } else {
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      weights[v] = Number::weights(w + v * kLanes<float>, step);
      // Keeps the compiler from loading a weight again for each row.
      if constexpr (std::is_same_v<Number, Single> && Rows > 1 && kVectorBytes > 16) asm("" : "+v"(weights[v].value));
    }
  }
}

/// Prefetches the cache lines that begin in `Bytes` bytes.
template <int64_t Bytes>
inline void prefetch_lines(const char* p) {
  constexpr int64_t kLine = 64;
#pragma GCC unroll 4
  for (int64_t byte = 0; byte < Bytes; byte += kLine) __builtin_prefetch(p + byte);
}

// Adds the products with `count` units of the panel's vectors from `w` on to the sums of the rows from `x` on.
// Prefetches the weights that are `ahead` bytes further on; 0 = none.
template <class Number, int Rows, int Vectors>
inline void numbers_part(const typename Number::Stored* x, int64_t pitch, const typename Number::Weight* w,
                         int64_t count, int64_t ahead, float (*out)[kOutputs]) {
  Vec<float> sums[Rows][Vectors];
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) sums[i][v] = load(out[i] + v * kLanes<float>, Whole{});
  for (int64_t k = 0; k < count; ++k, w += kOutputs) {
    if (ahead != 0) prefetch_lines<Vectors * kLanes<float> * sizeof(*w)>(reinterpret_cast<const char*>(w) + ahead);
#pragma GCC unroll 2
    for (int step = 0; step < Number::kSteps; ++step, x += pitch) {
      Number weights[Vectors];
      load_weights<Rows>(weights, w, step);
#pragma GCC unroll 12
      for (int i = 0; i < Rows; ++i) {
        const Number number = Number::number(x + i);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v) Number::add(sums[i][v], weights[v], number);
      }
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
      const int64_t ahead = row > 0 ? 0 : at_a_time < p.inputs ? (end - unit) * kOutputs * sizeof(*w) : Number::kAhead;
      numbers_part<Number, decltype(count)::value, decltype(vectors)::value>(
          x + row, rows, w + first * kLanes<float>, end - unit, ahead,
          reinterpret_cast<float (*)[kOutputs]>(&sums.of[row][first * kLanes<float>]));
    });
  }
  if constexpr (Number::kScales) {
    const auto* scales = reinterpret_cast<const float*>(static_cast<const char*>(p.panel) + p.inputs * kOutputs);
    for (int64_t i = 0; i < rows; ++i)
      for (int j = 0; j < kOutputs; ++j) sums.of[i][j] *= scales[j] * Number::kFactor;
  }
  write_panel(p, rows, sums);
}

}  // namespace
}  // namespace colossal::ops
