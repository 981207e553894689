// Bodies of the softmax and the loss of rows of logits; see kernels.h.
#pragma once
#include "colossal/ops/rows_kernel.h"

namespace colossal::ops {
namespace {

template <class T>
COLOSSAL_DEVICE bool is_counted(const SoftmaxRows<T>& a, int64_t row) {
  return a.labels[row] != a.ignored;
}
/// Returns the column of the label; negative if it is not among the valid columns.
template <class T>
COLOSSAL_DEVICE int64_t target_of(const SoftmaxRows<T>& a, int64_t row) {
  const int64_t column = a.labels[row] - a.first;
  return is_counted(a, row) && column >= 0 && column < a.valid ? column : -1;
}
template <class T>
COLOSSAL_DEVICE void write_target(const SoftmaxRows<T>& a, int64_t row, T largest) {
  const int64_t target = target_of(a, row);
  once([&] { a.targets[row] = target >= 0 ? a.logits[row * a.stride + target] - largest : T(0); });
}

template <class T>
COLOSSAL_DEVICE void softmax_largest(const SoftmaxRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T largest = is_counted(a, row) ? row_max(a.logits + row * a.stride, a.valid) : T(0);
    once([&] { a.largest[row] = largest; });
  }
}

template <class T>
COLOSSAL_DEVICE void softmax_exponentials(const SoftmaxRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T largest = a.largest[row];
    write_target(a, row, largest);
    together();  // the target's logit has been read
    const T sum = is_counted(a, row) ? row_exp(a.logits + row * a.stride, a.valid, largest) : T(0);
    once([&] { a.sums[row] = sum; });
  }
}

template <class T>
COLOSSAL_DEVICE void softmax_gradient(const SoftmaxRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* logits = a.logits + row * a.stride;
    const int64_t kept = is_counted(a, row) ? a.valid : 0, target = target_of(a, row);
    for_vectors<T>(a.columns - kept, [&](int64_t i, auto part) { store(logits + kept + i, Vec<T>{}, part); });
    row_scale(logits, kept, 1 / a.sums[row]);
    together();  // the target has been scaled
    if (target >= 0) once([&] { logits[target] -= 1; });
  }
}

#if defined(COLOSSAL_SIMT)

/// For a GPU, where rows do not fit a cache: one read gives largest and sum, and exponentials are computed again when
/// the gradient is written.
template <class T>
COLOSSAL_DEVICE void softmax(const SoftmaxRows<T>& a, bool gradient, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* logits = a.logits + row * a.stride;
    const int64_t kept = is_counted(a, row) ? a.valid : 0, target = target_of(a, row);
    const T lowest = kLowest<T>;  // finite, because the difference of two infinities is NaN
    Vec<T> best(lowest), total(0);
    for_vectors<T>(kept, [&](int64_t i, auto part) {
      const Vec<T> v = only<T>(load(logits + i, part), part, lowest), next = select(v > best, v, best);
      total = total * exp_of<T>(best - next) + only<T>(exp_of<T>(v - next), part, T(0));
      best = next;
    });
    const T largest = kept > 0 ? max_of<T>(best) : T(0), sum = sum_of<T>(total * exp_of<T>(best - largest));
    write_target(a, row, largest);
    once([&] { a.sums[row] = sum; });
    if (!gradient) continue;
    together();  // the target's logit has been read
    for_vectors<T>(kept, [&](int64_t i, auto part) {
      Vec<T> v = exp_of<T>(load(logits + i, part) - largest) / sum;
      for (int lane = 0; lane < kLanes<T>; ++lane)
        if (i + lane == target) v[lane] -= 1;
      store(logits + i, v, part);
    });
    for_vectors<T>(a.columns - kept, [&](int64_t i, auto part) { store(logits + kept + i, Vec<T>(0), part); });
  }
}

#else

/// Makes all visits of a row while it is in the cache.
template <class T>
void softmax(const SoftmaxRows<T>& a, bool gradient, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    softmax_largest(a, row, row + 1);
    softmax_exponentials(a, row, row + 1);
    if (gradient) softmax_gradient(a, row, row + 1);
  }
}

#endif

}  // namespace
}  // namespace colossal::ops
