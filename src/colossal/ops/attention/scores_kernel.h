// Operations on rows of attention scores other than masking: the cap and biases.
#pragma once
#include "colossal/ops/rows_kernel.h"
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

/// Replaces x by cap tanh(x / cap). If `slopes` is not null, it receives the derivative.
template <class W>
void cap_scores(W* x, W* slopes, int64_t n, W cap) {
  const W inverse = 1 / cap;
  for_vectors<W>(n, [&](int64_t j, auto part) {
    const Vec<W> t = tanh_of<W>(load(x + j, part) * inverse);
    store(x + j, t * cap, part);
    if (slopes) store(slopes + j, W(1) - t * t, part);
  });
}

/// Adds y to x.
template <class W>
void add_elements(W* x, const W* y, int64_t n) {
  for_vectors<W>(n, [&](int64_t j, auto part) { store(x + j, load(x + j, part) + load(y + j, part), part); });
}

/// Adds slope * (0, 1, 2, ...) + at_first to x.
template <class W>
void add_ramp(W* x, int64_t n, W at_first, W slope) {
  Vec<W> steps;
  for (int lane = 0; lane < kLanes<W>; ++lane) steps[lane] = static_cast<W>(lane);
  for_vectors<W>(n, [&](int64_t j, auto part) {
    store(x + j, load(x + j, part) + ((steps + static_cast<W>(j)) * slope + at_first), part);
  });
}

/// Adds slope * (positions[j] - own) to each x[j].
template <class W>
void add_distances(W* x, int64_t n, const int64_t* positions, int64_t own, W slope) {
  for (int64_t j = 0; j < n; ++j) x[j] += slope * static_cast<W>(positions[j] - own);
}

}  // namespace
}  // namespace colossal::ops
