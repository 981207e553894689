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

/// Adds the sums of `count` vectors of columns from column i on, which it keeps in registers.
template <class T, int N, bool kHasGradient, class Part>
void centred_sums_of(const CentredRows<T>& a, int64_t begin, int64_t end, int64_t i, Part part, WideOf<T>* sums,
                     WideOf<T>* products) {
  using W = WideOf<T>;
  Vec<W> mean[N], sum[N], product[N];
#pragma GCC unroll 4
  for (int k = 0; k < N; ++k) {
    mean[k] = load(a.mean + i + k * kLanes<W>, part);
    sum[k] = load(sums + i + k * kLanes<W>, part);
    product[k] = load(products + i + k * kLanes<W>, part);
  }
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * a.columns + i;
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) {
      const Vec<W> centred = load(a.x + first + k * kLanes<W>, part) - mean[k];
      Vec<W> other = centred;
      if constexpr (kHasGradient) other = load(a.dy + first + k * kLanes<W>, part);
      sum[k] += other;
      product[k] += other * centred;
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < N; ++k) {
    store(sums + i + k * kLanes<W>, sum[k], part);
    store(products + i + k * kLanes<W>, product[k], part);
  }
}

template <class T, bool kHasGradient>
void centred_sums_with(const CentredRows<T>& a, int64_t begin, int64_t end, WideOf<T>* sums, WideOf<T>* products) {
  using W = WideOf<T>;
  int64_t i = 0;
  for (; i + 4 * kLanes<W> <= a.columns; i += 4 * kLanes<W>)
    centred_sums_of<T, 4, kHasGradient>(a, begin, end, i, Whole{}, sums, products);
  for_vectors<W>(a.columns - i, [&](int64_t j, auto part) {
    centred_sums_of<T, 1, kHasGradient>(a, begin, end, i + j, part, sums, products);
  });
}

template <class T>
void centred_sums(const CentredRows<T>& a, int64_t begin, int64_t end, WideOf<T>* sums, WideOf<T>* products) {
  if (a.dy)
    centred_sums_with<T, true>(a, begin, end, sums, products);
  else
    centred_sums_with<T, false>(a, begin, end, sums, products);
}

template <class T>
void centred_affine(const CentredRows<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  for (int64_t row = begin; row < end; ++row) {
    const T *x = a.x + row * a.columns, *dy = a.dy ? a.dy + row * a.columns : nullptr;
    T* y = a.y + row * a.columns;
    for_vectors<W>(a.columns, [&](int64_t i, auto part) {
      Vec<W> value = (load(x + i, part) - load(a.mean + i, part)) * load(a.scale + i, part) + load(a.shift + i, part);
      if (dy) value += load(dy + i, part) * load(a.factor + i, part);
      store(y + i, value, part);
    });
  }
}

}  // namespace
}  // namespace colossal::ops
