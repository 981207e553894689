// Body of the AdamW kernel; see adamw.h for the formula.
#pragma once
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

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

template <class T, class G>
void adamw_step(const AdamWBuffers<T>& a, const G* grad, const AdamWFactors<WideOf<T>>& f, int64_t n) {
  using W = WideOf<T>;
  for_vectors<W>(n, [&](int64_t i, auto part) {
    const Vec<W> g = load(grad + i, part) * f.gradient_scale;
    Vec<W> m = load(a.exp_avg + i, part), v = load(a.exp_avg_sq + i, part);
    m += (g - m) * f.mix1;
    v = v * f.beta2 + g * g * f.mix2;
    const Vec<W> denominator = root_of(v) * f.inverse_correction2_root + f.epsilon;
    const Vec<W> p = load(a.param + i, part) * f.decay - f.step_size * (m / denominator);
    store(a.param + i, p, part);
    store(a.exp_avg + i, m, part);
    store(a.exp_avg_sq + i, v, part);
    if constexpr (!std::is_same_v<W, double>)
      if (a.copy) store(a.copy + i, p, part);
  });
}

}  // namespace
}  // namespace colossal::ops
