// Body of the Philox kernel; see random.h. It uses integers only, so every instruction set gives the same words.
#pragma once
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

typedef uint32_t RandomWords __attribute__((vector_size(kVectorBytes)));
typedef uint64_t RandomProducts __attribute__((vector_size(kVectorBytes)));
constexpr int kRandomLanes = kVectorBytes / 4;

/// Multiplies the lower halves of 64-bit lanes. It uses intrinsics, because the compiler cannot know that the upper
/// halves are irrelevant and would multiply them too.
inline RandomProducts multiply_lower_halves(RandomProducts a, RandomProducts b) {
#if defined(__AVX512F__)
  return (RandomProducts)_mm512_maskz_mul_epu32(0xFF, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (RandomProducts)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (RandomProducts)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xFFFFFFFFu) * (b & 0xFFFFFFFFu);
#endif
}

/// Computes the upper and lower halves of factor * x for every lane. Even and odd lanes are multiplied separately, as
/// 64-bit lanes.
inline void multiply_words(uint32_t factor, RandomWords x, RandomWords& high, RandomWords& low) {
  const RandomProducts factors = RandomProducts{} + factor;
  const RandomProducts even = multiply_lower_halves((RandomProducts)x, factors);
  const RandomProducts odd = multiply_lower_halves((RandomProducts)x >> 32, factors);
  low = (RandomWords)((even & 0xFFFFFFFFu) | (odd << 32));
  high = (RandomWords)((even >> 32) | (odd & 0xFFFFFFFF00000000u));
}

/// Computes the blocks of kRandomLanes counters from `counter` on, in the order of their logical indices.
inline void philox_blocks(uint64_t counter, uint64_t seed, uint32_t* out) {
  RandomWords c0, c1, c2{}, c3{};
  for (int i = 0; i < kRandomLanes; ++i) {
    c0[i] = static_cast<uint32_t>(counter + static_cast<uint64_t>(i));
    c1[i] = static_cast<uint32_t>((counter + static_cast<uint64_t>(i)) >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    RandomWords high0, low0, high1, low1;
    multiply_words(0xD2511F53u, c0, high0, low0);
    multiply_words(0xCD9E8D57u, c2, high1, low1);
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
  }
  uint32_t words[4][kRandomLanes];
  __builtin_memcpy(words[0], &c0, sizeof c0);
  __builtin_memcpy(words[1], &c1, sizeof c1);
  __builtin_memcpy(words[2], &c2, sizeof c2);
  __builtin_memcpy(words[3], &c3, sizeof c3);
  for (int i = 0; i < kRandomLanes; ++i)
    for (int w = 0; w < 4; ++w) out[4 * i + w] = words[w][i];
}

inline void draw_words(uint64_t seed, uint64_t first, int64_t count, uint32_t* out) {
  constexpr int64_t kGroup = 4 * kRandomLanes;
  int64_t done = 0;
  while (done < count) {  // whole groups are written in place; groups at both ends are cut
    const uint64_t index = first + static_cast<uint64_t>(done);
    const int64_t offset = static_cast<int64_t>(index % 4);
    if (offset == 0 && count - done >= kGroup) {
      philox_blocks(index / 4, seed, out + done);
      done += kGroup;
      continue;
    }
    uint32_t group[kGroup];
    philox_blocks(index / 4, seed, group);
    const int64_t take = kGroup - offset < count - done ? kGroup - offset : count - done;
    for (int64_t i = 0; i < take; ++i) out[done + i] = group[offset + i];
    done += take;
  }
}

}  // namespace
}  // namespace colossal::ops
