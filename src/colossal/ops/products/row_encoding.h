// Conversion of rows to codes; see prepacked_kernels.h.
#pragma once
#include "colossal/ops/products/panel_parts.h"

namespace colossal::ops {
namespace {

void encode_row(const float* x, int64_t inputs, int64_t group, int8_t* codes, float* scales, int32_t* sums) {
  for (int64_t g = 0; g * group < inputs; ++g) {
    const float* from = x + g * group;
    float largest = 0, not_finite = 0;  // not_finite is 0, or NaN, which makes the scale NaN
    for (int64_t k = 0; k < group; ++k) {
      const float magnitude = from[k] < 0 ? -from[k] : from[k];
      largest = magnitude > largest ? magnitude : largest;
      not_finite += 0 * from[k];
    }
    const float scale = largest / 127.0f + not_finite, inverse = largest > 0 ? 127.0f / largest : 0;
    int32_t sum = 0;
    for (int64_t k = 0; k < group; ++k) {
      // Adding kRoundingMagic rounds to an integer, ties to even, in the low bits.
      const float rounded = from[k] * inverse + Simd<float>::kRoundingMagic;
      int32_t bits;
      __builtin_memcpy(&bits, &rounded, sizeof bits);
      const int32_t code = static_cast<int8_t>(bits & 0xFF);
      codes[g * group + k] = static_cast<int8_t>(code);
      sum += code;
    }
    scales[g] = scale;
    sums[g] = sum;
  }
}

}  // namespace
}  // namespace colossal::ops
