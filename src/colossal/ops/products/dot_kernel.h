// Body of products with few columns; see DotProducts in ops/kernels.h.
#pragma once
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

template <class T>
void dot_products(const DotProducts<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = a.x + row * a.depth;
    for (int64_t column = 0; column < a.columns; ++column) {
      const T* w = a.w + column * a.depth;
      Vec<W> sums[4]{};  // chains, so that additions do not wait for one another
      for_chains<W, 4>(
          a.depth, [&](int64_t i, int chain, auto part)
                       __attribute__((always_inline)) { sums[chain] += load(x + i, part) * load(w + i, part); });
      a.y[row * a.columns + column] = sum_of<W>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
  }
}

}  // namespace
}  // namespace colossal::ops
