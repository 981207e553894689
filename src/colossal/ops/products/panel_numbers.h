// Products with panels of fp32, bf16 and fp8 numbers; see prepacked_kernels.h.
#pragma once
#include "colossal/ops/products/panel_parts.h"

namespace colossal::ops {
namespace {

// One element per lane.
struct Single {
  using Stored = float;
  using Weight = float;
  static constexpr int64_t kInputs = 1;
  Vec<float> value;
  static Single weights(const float* p) { return {load(p, Whole{})}; }
  static Single number(const float* p) { return {splat<float>(*p)}; }
  static Vec<float> add(Vec<float> sum, Single a, Single b) { return sum + b.value * a.value; }
};

// One element per lane, of a weight in e4m3. Its exponent and mantissa are moved to their position in fp32; a factor
// then corrects the different exponent bias. Subnormal e4m3 values are subnormal in between, which is slow; few weights
// are that small.
struct SingleFp8 {
  using Stored = float;
  using Weight = int8_t;
  static constexpr int64_t kInputs = 1;
  Vec<float> value;
  static SingleFp8 weights(const int8_t* p) {
    typedef int8_t Bytes __attribute__((vector_size(kLanes<float>)));
    const Ints codes = __builtin_convertvector(load_bytes<Bytes>(p), Ints);  // the upper bits are copies of the sign
    return {(Vec<float>)((codes << 20) & static_cast<int32_t>(0x87F00000u)) * 0x1p120f};
  }
  static SingleFp8 number(const float* p) { return {splat<float>(*p)}; }
  static Vec<float> add(Vec<float> sum, SingleFp8 a, SingleFp8 b) { return sum + b.value * a.value; }
};

// Two neighbouring bf16 elements per lane; products are added in fp32.
struct Pairs {
  using Stored = uint32_t;
  using Weight = uint32_t;
  static constexpr int64_t kInputs = 2;
#if defined(__AVX512BF16__)
  __m512bh bits;
  static Pairs weights(const uint32_t* p) { return {(__m512bh)load_bytes<__m512i>(p)}; }
  static Pairs number(const uint32_t* p) { return {(__m512bh)_mm512_set1_epi32(load_four(p))}; }
  static Vec<float> add(Vec<float> sum, Pairs a, Pairs b) {
    return (Vec<float>)_mm512_dpbf16_ps((__m512)sum, a.bits, b.bits);
  }
#else
  Vec<float> first, second;
  static Pairs of(Words words) { return {(Vec<float>)(words << 16), (Vec<float>)(words & 0xFFFF0000u)}; }
  static Pairs weights(const uint32_t* p) { return of(load_bytes<Words>(p)); }
  static Pairs number(const uint32_t* p) { return of(*p - Words{}); }
  static Vec<float> add(Vec<float> sum, Pairs a, Pairs b) {
    sum += a.first * b.first;
    return sum + a.second * b.second;
  }
#endif
};

template <class Number, int Rows, int Vectors>
inline void numbers_part(const typename Number::Stored* x, int64_t pitch, const typename Number::Weight* w,
                         int64_t count, float (*out)[kOutputs]) {
  Vec<float> sums[Rows][Vectors] = {};
  for (int64_t k = 0; k < count; ++k) {
    Number weights[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) weights[v] = Number::weights(w + k * kOutputs + v * kLanes<float>);
#pragma GCC unroll 12
    for (int i = 0; i < Rows; ++i) {
      const Number number = Number::number(x + k * pitch + i);
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sums[i][v] = Number::add(sums[i][v], weights[v], number);
    }
  }
#pragma GCC unroll 12
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) store(out[i] + v * kLanes<float>, sums[i][v], Whole{});
}

template <class Number>
void multiply_numbers(const PanelProduct& p, int64_t rows) {
  using Stored = typename Number::Stored;
  using Weight = typename Number::Weight;
  PanelSums sums;
  for_parts(rows, [&](int64_t row, auto count, int first, auto vectors) {
    numbers_part<Number, decltype(count)::value, decltype(vectors)::value>(
        static_cast<const Stored*>(p.block) + row, rows, static_cast<const Weight*>(p.panel) + first * kLanes<float>,
        p.inputs / Number::kInputs, reinterpret_cast<float(*)[kOutputs]>(&sums.of[row][first * kLanes<float>]));
  });
  if constexpr (std::is_same_v<Number, SingleFp8>) {
    const auto* scales = reinterpret_cast<const float*>(static_cast<const char*>(p.panel) + p.inputs * kOutputs);
    for (int64_t i = 0; i < rows; ++i)
      for (int j = 0; j < kOutputs; ++j) sums.of[i][j] *= scales[j];
  }
  write_panel(p, rows, sums);
}

}  // namespace
}  // namespace colossal::ops
