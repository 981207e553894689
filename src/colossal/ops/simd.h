// CPU implementation of the vocabulary of lanes.h: vectors of the width for which the including unit is compiled. This
// header is for kernel bodies only. Everything is in an unnamed namespace: an inline function shared by units of
// different instruction sets would be one symbol, and the linker might keep a copy that this machine cannot run. Kernel
// bodies therefore call no inline function of std or ATen.
#pragma once
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstdint>

#include "colossal/ops/kernels.h"

#define COLOSSAL_DEVICE

namespace colossal::ops {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

/// Constants and vector types of the computing type W: float or double.
template <class W>
struct Simd;
template <>
struct Simd<float> {
  typedef float Vector __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Integers __attribute__((vector_size(kVectorBytes)));
  static constexpr int kMantissaBits = 23, kExponentBias = 127, kSeriesTerms = 7;
  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  static constexpr float kRoundingMagic = 12582912.0f;
  static constexpr float kMinExponent = -87.0f, kMaxExponent = 88.0f;
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
};
template <>
struct Simd<double> {
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Integers __attribute__((vector_size(kVectorBytes)));
  static constexpr int kMantissaBits = 52, kExponentBias = 1023, kSeriesTerms = 13;
  static constexpr double kRoundingMagic = 6755399441055744.0;
  static constexpr double kMinExponent = -708.0, kMaxExponent = 709.0;
  static constexpr double kLn2High = 6.93145751953125e-1, kLn2Low = 1.42860682030941723212e-6;
};
/// 1 / k!: coefficients of the series of e^x.
constexpr double kInverseFactorials[] = {
    1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
template <class W>
using Vec = typename Simd<W>::Vector;
template <class W>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(W));

template <class W>
inline Vec<W> splat(W value) {
  return value - Vec<W>{};
}
/// Returns a in lanes where the comparison is true, else b.
template <class Where, class V>
inline V select(Where where, V a, V b) {
  return where ? a : b;
}

/// Part of a loop: a whole vector, or the `count` elements of its tail.
struct Whole {};
struct Tail {
  int64_t count;
};

typedef uint16_t HalfWords __attribute__((vector_size(kVectorBytes / 2)));
typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));

inline Vec<float> load(const float* p, Whole) {
  Vec<float> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline Vec<double> load(const double* p, Whole) {
  Vec<double> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline Vec<float> load(const Bf16* p, Whole) {
  HalfWords halves;
  __builtin_memcpy(&halves, p, sizeof halves);
#if defined(__AVX2__) && !defined(__AVX512F__)  // one instruction, for which g++ 12 would take four
  return (Vec<float>)((Words)_mm256_cvtepu16_epi32((__m128i)halves) << 16);
#else
  return (Vec<float>)(__builtin_convertvector(halves, Words) << 16);
#endif
}
inline void store(float* p, Vec<float> v, Whole) { __builtin_memcpy(p, &v, sizeof v); }
inline void store(double* p, Vec<double> v, Whole) { __builtin_memcpy(p, &v, sizeof v); }
inline void store(Bf16* p, Vec<float> v, Whole) {  // round to nearest even; NaN stays NaN
  const Words bits = (Words)v, rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const Words words = (bits & 0x7FFFFFFFu) > 0x7F800000u ? (bits >> 16) | 0x40u : rounded;
  const HalfWords halves = __builtin_convertvector(words, HalfWords);
  __builtin_memcpy(p, &halves, sizeof halves);
}
inline Vec<float> load(const Half* p, Whole) {
  HalfWords halves;
  __builtin_memcpy(&halves, p, sizeof halves);
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_maskz_cvtph_ps(0xFFFF, (__m256i)halves);
#elif defined(__F16C__)
  return (Vec<float>)_mm256_cvtph_ps((__m128i)halves);
#else
  const Words bits = __builtin_convertvector(halves, Words), magnitude = (bits & 0x7FFFu) << 13;
  // shifts the exponent's bias and makes subnormals normal
  const Words finite = (Words)((Vec<float>)magnitude * 0x1p112f);
  return (Vec<float>)((magnitude >= 0x0F800000u ? magnitude | 0x7F800000u : finite) | ((bits & 0x8000u) << 16));
#endif
}
// Rounds to nearest even. NaN stays NaN; values that are too large become infinite.
inline void store(Half* p, Vec<float> v, Whole) {
#if defined(__AVX512F__)
  const HalfWords halves =
      (HalfWords)_mm512_maskz_cvtps_ph(0xFFFF, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  const HalfWords halves = (HalfWords)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Words bits = (Words)v, magnitude = bits & 0x7FFFFFFFu;
  const Words normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  // the last bit of 0.5 is 2^-24, as for subnormals
  const Words subnormal = (Words)((Vec<float>)magnitude + 0.5f) - 0x3F000000u;
  const Words finite = magnitude < 0x38800000u ? subnormal : (magnitude < 0x477FF000u ? normal : Words{} + 0x7C00u);
  const Words rounded = magnitude > 0x7F800000u ? ((magnitude >> 13) & 0x3FFu) | 0x7E00u : finite;
  const HalfWords halves = __builtin_convertvector(rounded | ((bits >> 16) & 0x8000u), HalfWords);
#endif
  __builtin_memcpy(p, &halves, sizeof halves);
}
/// Rounds stochastically by the lower half of a random word: up with the probability that makes the mean exact. NaN
/// stays NaN.
inline Vec<float> rounded_by_chance(Vec<float> v, Words word) {
  const Words bits = (Words)v;
  return (Vec<float>)((bits & 0x7FFFFFFFu) > 0x7F800000u ? bits : (bits + (word & 0xFFFFu)) & 0xFFFF0000u);
}

template <class T>
inline Vec<WideOf<T>> load(const T* p, Tail tail) {
  T buffer[kLanes<WideOf<T>>] = {};
  for (int64_t i = 0; i < tail.count; ++i) buffer[i] = p[i];
  return load(buffer, Whole{});
}
inline Words load_words(const RandomWords& random, int64_t i, Whole) {
  Words words;
  __builtin_memcpy(&words, random.drawn + i, sizeof words);
  return words;
}
inline Words load_words(const RandomWords& random, int64_t i, Tail tail) {
  Words words{};
  for (int64_t lane = 0; lane < tail.count; ++lane) words[lane] = random.drawn[i + lane];
  return words;
}
template <class T>
inline void store(T* p, Vec<WideOf<T>> v, Tail tail) {
  T buffer[kLanes<WideOf<T>>];
  store(buffer, v, Whole{});
  for (int64_t i = 0; i < tail.count; ++i) p[i] = buffer[i];
}

/// Calls body(i, Whole or Tail) for i = 0, lanes, 2 lanes, ... below n.
template <class W, class Body>
inline __attribute__((always_inline)) void for_vectors(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + kLanes<W> <= n; i += kLanes<W>) body(i, Whole{});
  if (i < n) body(i, Tail{n - i});
}
/// Calls body(i, chain, part) with chains 0, 1, ... N - 1 in turn.
template <class W, int N, class Body>
inline __attribute__((always_inline)) void for_chains(int64_t n, Body&& body) {
  int64_t i = 0;
  for (; i + N * kLanes<W> <= n; i += N * kLanes<W>)
#pragma GCC unroll 4
    for (int chain = 0; chain < N; ++chain) body(i + chain * kLanes<W>, chain, Whole{});
  for_vectors<W>(n - i, [&](int64_t j, auto part) { body(i + j, 0, part); });
}
/// Calls of_row(row)(i, part) for the vectors of rows of n elements. of_row is called once per row.
template <class W, class OfRow>
inline __attribute__((always_inline)) void for_vectors_of_rows(int64_t begin, int64_t end, int64_t n, OfRow&& of_row) {
  for (int64_t row = begin; row < end; ++row) for_vectors<W>(n, of_row(row));
}

/// Calls body(): on a CPU there is one thread.
template <class Body>
inline __attribute__((always_inline)) void once(const Body& body) {
  body();
}
inline void together() {}

/// Returns v with lanes past the tail replaced by `filler`.
template <class W>
inline Vec<W> only(Vec<W> v, Whole, W) {
  return v;
}
template <class W>
inline Vec<W> only(Vec<W> v, Tail tail, W filler) {
  for (int64_t i = tail.count; i < kLanes<W>; ++i) v[i] = filler;
  return v;
}

template <class W>
inline W sum_of(Vec<W> v) {
  W total = 0;
  for (int i = 0; i < kLanes<W>; ++i) total += v[i];
  return total;
}
template <class W>
inline W max_of(Vec<W> v) {
  W best = v[0];
  for (int i = 1; i < kLanes<W>; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

/// Returns e^x: x = n ln2 + r, Taylor series in r, 2^n by the exponent bits. Within 2 ulp for W = float. It returns 0
/// below the normal range, and about the largest number above it.
template <class W>
inline Vec<W> exp_of(Vec<W> x) {
  using S = Simd<W>;
  const Vec<W> low = splat<W>(S::kMinExponent), high = splat<W>(S::kMaxExponent);
  const auto underflow = x < low;
  x = x > high ? high : (underflow ? low : x);
  const Vec<W> shifted = x * W(1.44269504088896340736) + S::kRoundingMagic;
  const Vec<W> n = shifted - S::kRoundingMagic;
  const Vec<W> r = (x - n * S::kLn2High) - n * S::kLn2Low;
  Vec<W> series = splat<W>(static_cast<W>(kInverseFactorials[S::kSeriesTerms]));
#pragma GCC unroll 16
  for (int k = S::kSeriesTerms - 1; k >= 0; --k) series = series * r + static_cast<W>(kInverseFactorials[k]);
  const auto exponent = ((typename S::Integers)shifted + S::kExponentBias) << S::kMantissaBits;
  const Vec<W> result = series * (Vec<W>)exponent;
  return underflow ? Vec<W>{} : result;
}

inline Vec<float> root_of(Vec<float> v) {
#if defined(__AVX512F__)
  return (Vec<float>)_mm512_maskz_sqrt_ps(0xFFFF, (__m512)v);
#elif defined(__AVX2__)
  return (Vec<float>)_mm256_sqrt_ps((__m256)v);
#elif defined(__SSE2__)
  return (Vec<float>)_mm_sqrt_ps((__m128)v);
#else
  for (int i = 0; i < kLanes<float>; ++i) v[i] = __builtin_sqrtf(v[i]);
  return v;
#endif
}
inline Vec<double> root_of(Vec<double> v) {
  for (int i = 0; i < kLanes<double>; ++i) v[i] = __builtin_sqrt(v[i]);
  return v;
}

/// Returns 1 / (1 + e^-x).
template <class W>
inline Vec<W> sigmoid(Vec<W> x) {
  return W(1) / (W(1) + exp_of<W>(-x));
}

/// Returns the hyperbolic tangent: 1 - 2 / (e^2|x| + 1). For |x| < 1/2, where that would cancel, it uses the Pade
/// approximant [7/6].
template <class W>
inline Vec<W> tanh_of(Vec<W> x) {
  const Vec<W> size = x < W(0) ? -x : x, square = x * x;
  const Vec<W> far = W(1) - W(2) / (exp_of<W>(size * W(2)) + W(1));
  const Vec<W> near = size * (((square + W(378)) * square + W(17325)) * square + W(135135)) /
                      (((W(28) * square + W(3150)) * square + W(62370)) * square + W(135135));
  const Vec<W> result = size < W(0.5) ? near : far;
  return x < W(0) ? -result : result;
}

// Vectors of fp32 from bytes: quantized values of int8 and e4m3. g++ 12 converts bytes to wider lanes one by one, so
// the instructions are named here.

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
