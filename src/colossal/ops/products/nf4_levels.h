// The 16 numbers of NF4, for kernel bodies and for ops/products/nf4_weight.h.
#pragma once
#include "colossal/ops/kernels.h"

namespace colossal::ops {

/// Values of the codes 0 to 15, in units of the block's largest magnitude: bitsandbytes' numbers. The quantiles of the
/// paper (Dettmers et al., arXiv:2305.14314, appendix E) differ by at most 1.2e-7.
inline constexpr float kNf4Levels[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/// Borders between each code and the next one. A number on a border gets the lower code.
struct Nf4Borders {
  float of[15];
};
consteval Nf4Borders nf4_borders() {
  Nf4Borders borders{};
  for (int code = 0; code < 15; ++code) borders.of[code] = (kNf4Levels[code] + kNf4Levels[code + 1]) / 2;
  return borders;
}
inline constexpr Nf4Borders kNf4Borders = nf4_borders();

/// Blocks whose largest magnitude is below this number are scaled by its inverse.
constexpr float kNf4MinAbsmax = 1e-38f;

}  // namespace colossal::ops
