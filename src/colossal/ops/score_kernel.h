// Bodies of the kernels of log-probabilities and entropies of rows of logits; see kernels.h. A row may be seen in
// parts, so the running sums are relative to the largest z so far.
#pragma once
#include "colossal/ops/rows_kernel.h"

namespace colossal::ops {
namespace {

/// Below this difference from the largest z a probability is 0, so its part of an entropy is too. A z of -infinity
/// would give 0 * infinity.
template <class T>
constexpr T kNoProbability = -1000;

template <class T>
COLOSSAL_DEVICE bool counts(const ScoreRows<T>& a, int64_t row) {
  return a.labels[row] != a.ignored;
}
/// Returns the column of the label; negative if it is not among the valid columns.
template <class T>
COLOSSAL_DEVICE int64_t label_column(const ScoreRows<T>& a, int64_t row) {
  const int64_t column = a.labels[row] - a.first;
  return column >= 0 && column < a.valid ? column : -1;
}
template <class T>
COLOSSAL_DEVICE Vec<T> at_least(Vec<T> x, T least) {
  return select(x > splat<T>(least), x, splat<T>(least));
}

template <class T>
COLOSSAL_DEVICE void score_statistics(const ScoreRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    if (!counts(a, row) || a.valid == 0) continue;
    const T* logits = a.logits + row * a.stride;
    const T before = a.largest[row], here = row_max(logits, a.valid) * a.scale, largest = here > before ? here : before;
    Vec<T> total[2] = {splat<T>(0), splat<T>(0)}, moment[2] = {splat<T>(0), splat<T>(0)};
    for_chains<T, 2>(a.valid, [&](int64_t i, int chain, auto part) {
      const Vec<T> z = load(logits + i, part) * a.scale - largest, e = only<T>(exp_of<T>(z), part, T(0));
      total[chain] += e;
      if (a.moments) moment[chain] += e * at_least<T>(z, kNoProbability<T>);
    });
    const T sum = sum_of<T>(total[0] + total[1]), sum_of_moments = a.moments ? sum_of<T>(moment[0] + moment[1]) : T(0);
    const T factor = exp_of<T>(splat<T>(before - largest))[0];
    const int64_t column = label_column(a, row);
    together();  // all threads have read `largest`
    once([&] {
      // Before the first words, `before` is the lowest number and the sums are 0.
      if (a.moments) a.moments[row] = factor * (a.moments[row] + (before - largest) * a.sums[row]) + sum_of_moments;
      a.sums[row] = factor * a.sums[row] + sum;
      a.largest[row] = largest;
      if (column >= 0) a.targets[row] = logits[column] * a.scale;
    });
  }
}

template <class T>
COLOSSAL_DEVICE void score_gradient(const ScoreRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* logits = a.logits + row * a.stride;
    const bool is_counted = counts(a, row);
    const int64_t kept = is_counted ? a.valid : 0, column = is_counted ? label_column(a, row) : -1;
    for_vectors<T>(a.columns - kept, [&](int64_t i, auto part) { store(logits + kept + i, splat<T>(0), part); });
    if (!is_counted) continue;
    const T largest = a.largest[row], log_sum = a.log_sums[row];
    const T of_value = a.of_value ? a.of_value[row] : T(0);
    if (a.of_entropy) {
      const T of_entropy = a.of_entropy[row], entropy = a.entropies[row];
      for_vectors<T>(kept, [&](int64_t i, auto part) {
        const Vec<T> z = at_least<T>(load(logits + i, part) * a.scale - largest - log_sum, kNoProbability<T>);
        store(logits + i, -(exp_of<T>(z) * ((z + entropy) * of_entropy + of_value) * a.scale), part);
      });
    } else {
      const T factor = -of_value * a.scale;
      for_vectors<T>(kept, [&](int64_t i, auto part) {
        store(logits + i, exp_of<T>(load(logits + i, part) * a.scale - largest - log_sum) * factor, part);
      });
    }
    together();  // the label's column has been written
    if (column >= 0) once([&] { logits[column] += of_value * a.scale; });
  }
}

}  // namespace
}  // namespace colossal::ops
