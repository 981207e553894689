// What becomes of rows of attention scores beside their mask: the cap, and the biases of ALiBi.
#pragma once
#include "colossal/ops/rows_kernel.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

/// x = cap tanh(x / cap), and in `slopes`, unless null, what that makes of a small change of x.
template <class W>
void cap_scores(W* x, W* slopes, int64_t n, W cap) {
  const W inverse = 1 / cap;
  for_vectors<W>(n, [&](int64_t j, auto part) {
    const Vec<W> t = tanh_of<W>(load(x + j, part) * inverse);
    store(x + j, t * cap, part);
    if (slopes) store(slopes + j, W(1) - t * t, part);
  });
}

/// x += slope * (0, 1, 2, ...) + at_first.
template <class W>
void add_ramp(W* x, int64_t n, W at_first, W slope) {
  Vec<W> steps;
  for (int lane = 0; lane < kLanes<W>; ++lane) steps[lane] = static_cast<W>(lane);
  for_vectors<W>(n, [&](int64_t j, auto part) {
    store(x + j, load(x + j, part) + ((steps + static_cast<W>(j)) * slope + at_first), part);
  });
}

/// x[j] += slope * (positions[j] - own).
template <class W>
void add_distances(W* x, int64_t n, const int64_t* positions, int64_t own, W slope) {
  for (int64_t j = 0; j < n; ++j) x[j] += slope * static_cast<W>(positions[j] - own);
}

}  // namespace
}  // namespace colossal::ops
