// Bodies of the norm kernels; see kernels.h.
#pragma once
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

template <class T>
void norm_forward(const NormForward<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  const int64_t n = a.columns;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = a.x + row * n;
    Vec<W> total{};
    W mean = 0;
    if (a.mean) {
      for_vectors<W>(n, [&](int64_t i, auto part) { total += load(x + i, part); });
      a.mean[row] = mean = sum_of<W>(total) / static_cast<W>(n);
    }
    Vec<W> squares{};
    for_vectors<W>(n, [&](int64_t i, auto part) {
      const Vec<W> centred = only<W>(load(x + i, part) - mean, part, W(0));
      squares += centred * centred;
    });
    const W scale = W(1) / static_cast<W>(__builtin_sqrt(sum_of<W>(squares) / static_cast<W>(n) + a.epsilon));
    a.scale[row] = scale;
    T* y = a.y + row * n;
    for_vectors<W>(n, [&](int64_t i, auto part) {
      Vec<W> value = (load(x + i, part) - mean) * scale * (load(a.weight + i, part) + a.offset);
      if (a.bias) value += load(a.bias + i, part);
      store(y + i, value, part);
    });
  }
}

// With g = dy w and z the normed row: dx = scale (g - mean(g) - z mean(g z)), without mean(g) for RMSNorm.
template <class T>
void norm_backward(const NormBackward<T>& a, WideOf<T>* dweight, WideOf<T>* dbias, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  const int64_t n = a.columns;
  for (int64_t row = begin; row < end; ++row) {
    const T *x = a.x + row * n, *dy = a.dy + row * n;
    const W mean = a.mean ? a.mean[row] : W(0), scale = a.scale[row];
    Vec<W> sum_g{}, sum_gz{};
    for_vectors<W>(n, [&](int64_t i, auto part) {
      const Vec<W> gradient = load(dy + i, part), z = (load(x + i, part) - mean) * scale;
      const Vec<W> g = gradient * (load(a.weight + i, part) + a.offset);  // zero past a tail, like the gradient
      sum_g += g;
      sum_gz += g * z;
      if (dweight) store(dweight + i, load(dweight + i, part) + gradient * z, part);
      if (dbias) store(dbias + i, load(dbias + i, part) + gradient, part);
    });
    if (!a.dx) continue;
    const W mean_g = a.mean ? sum_of<W>(sum_g) / static_cast<W>(n) : W(0),
            mean_gz = sum_of<W>(sum_gz) / static_cast<W>(n);
    T* dx = a.dx + row * n;
    for_vectors<W>(n, [&](int64_t i, auto part) {
      const Vec<W> z = (load(x + i, part) - mean) * scale;
      const Vec<W> g = load(dy + i, part) * (load(a.weight + i, part) + a.offset);
      store(dx + i, (g - mean_g - z * mean_gz) * scale, part);
    });
  }
}

}  // namespace
}  // namespace colossal::ops
