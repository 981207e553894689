// Vectors of fp32 from bytes: quantized values of int8 and e4m3. g++ 12 converts bytes to wider lanes one by one, so
// the instructions are named here. Like simd.h, this header is for kernel bodies only.
#pragma once
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

/// Returns kLanes<float> signed bytes as 32-bit integers. With AVX2 and AVX-512 this is one instruction, vpmovsxbd.
inline Simd<float>::Integers widen_bytes(const int8_t* p) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes<float>)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
#if defined(__AVX512F__)
  return (Simd<float>::Integers)_mm512_maskz_cvtepi8_epi32(0xFFFF, (__m128i)bytes);
#elif defined(__AVX2__)
  return (Simd<float>::Integers)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128((int64_t)bytes));
#else
  return __builtin_convertvector(bytes, Simd<float>::Integers);
#endif
}

/// Returns kLanes<float> values of int8.
inline Vec<float> load_int8(const int8_t* p) { return __builtin_convertvector(widen_bytes(p), Vec<float>); }

/// The value of an e4m3 code in units of what load_e4m3() returns for it.
constexpr float kE4m3Unit = 256;

/// Returns the values of kLanes<float> e4m3 codes, divided by kE4m3Unit. The quotients are exact. The codes of NaN give
/// the number after the largest one. e4m3 has the layout of fp16 with fewer bits and another exponent bias, so the
/// conversion is that of fp16, which is fast for subnormal values too.
inline Vec<float> load_e4m3(const int8_t* p) {
#if defined(__AVX512F__)
  const __m256i words = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)), 7);
  return (Vec<float>)_mm512_maskz_cvtph_ps(0xFFFF, _mm256_and_si256(words, _mm256_set1_epi16((int16_t)0xBFFF)));
#elif defined(__AVX2__)
  const __m128i words = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)p)), 7);
  return (Vec<float>)_mm256_cvtph_ps(_mm_and_si128(words, _mm_set1_epi16((int16_t)0xBFFF)));
#else
  const Words codes = (Words)widen_bytes(p), magnitude = codes & 0x7Fu;
  // adds a leading bit to a subnormal mantissa and subtracts its value again, so no intermediate value is subnormal
  const auto is_small = magnitude < 8u;
  const Words bits = ((is_small ? magnitude + 8u : magnitude) << 20) + (112u << 23);
  const Vec<float> value = (Vec<float>)bits, exact = is_small ? value - 0x1p-14f : value;
  return (codes & 0x80u) != 0u ? -exact : exact;
#endif
}

}  // namespace
}  // namespace colossal::ops
