// Bodies of the kernels of 8-bit codes; see block_codes.h.
#pragma once
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

using Integers = Simd<float>::Integers;

inline void store_codes(uint8_t* p, Integers codes, Whole) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)p, _mm512_maskz_cvtepi32_epi8(0xFFFF, (__m512i)codes));
#elif defined(__AVX2__)
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128((__m256i)codes), _mm256_extracti128_si256((__m256i)codes, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(words, words));
#else
  for (int i = 0; i < kLanes<float>; ++i) p[i] = static_cast<uint8_t>(codes[i]);
#endif
}
inline void store_codes(uint8_t* p, Integers codes, Tail tail) {
  for (int64_t i = 0; i < tail.count; ++i) p[i] = static_cast<uint8_t>(codes[i]);
}

inline Vec<float> magnitude_of(Vec<float> v) { return (Vec<float>)((Integers)v & 0x7FFFFFFF); }
inline Vec<float> larger(Vec<float> a, Vec<float> b) { return a > b ? a : b; }  // returns b if a is NaN

inline float encode_block(const CodeTable& table, const float* values, int64_t count, uint8_t* codes) {
  const CodeTable t = table;  // a copy, because a store of a byte may alias anything
  Vec<float> most[2] = {};    // independent chains of comparisons
  int64_t i = 0;
  for (; i + 2 * kLanes<float> <= count; i += 2 * kLanes<float>)
    for (int k = 0; k < 2; ++k) most[k] = larger(magnitude_of(load(values + i + k * kLanes<float>, Whole{})), most[k]);
  for_vectors<float>(
      count - i, [&](int64_t j, auto part) { most[0] = larger(magnitude_of(load(values + i + j, part)), most[0]); });
  const float scale = max_of<float>(larger(most[0], most[1])), divisor = scale > 0 ? scale : 1;
  // Three passes over a block in the nearest cache: scalar look-ups are faster than a vector gather, and a vector load
  // right after the scalar stores of its lanes would stall.
  int32_t entries[kCodeBlock + kLanes<float>];  // room to write the last vector whole
  float quotients[kCodeBlock + kLanes<float>];
  for_vectors<float>(count, [&](int64_t j, auto part) {
    const Vec<float> quotient = load(values + j, part) / divisor;
    const Integers first = Integers{} + t.first_run, last = Integers{} + t.last_run;
    Integers run = ((Integers)quotient & 0x7FFFFFFF) >> 16;
    run = run < first ? first : run;
    run = (run > last ? last : run) - first;
    store(quotients + j, quotient, Whole{});
    __builtin_memcpy(entries + j, &run, sizeof run);
  });
  for (int64_t j = 0; j < count; ++j) entries[j] = t.runs[entries[j]];
  for_vectors<float>(count, [&](int64_t j, auto part) {
    const Integers bits = (Integers)load(quotients + j, Whole{});
    Integers entry;
    __builtin_memcpy(&entry, entries + j, sizeof entry);
    const Integers code = (entry >> 16) - ((bits & 0xFFFF) > (entry & 0xFFFF));  // a true comparison is -1
    const Integers sign = (bits >> 31) & t.sign_mask;                            // -1 for negative values
    store_codes(codes + j, t.zero + ((code ^ sign) - sign), part);
  });
  return scale;
}

inline void decode_block(const CodeTable& t, const uint8_t* codes, float scale, int64_t count, float* values) {
  const float* meaning = t.values;
  for (int64_t i = 0; i < count; ++i) values[i] = meaning[codes[i]] * scale;
}

}  // namespace
}  // namespace colossal::ops
