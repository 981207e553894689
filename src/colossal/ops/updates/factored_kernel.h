// Bodies of the matrix passes with sums and factors per row and column; see factored.h.
#pragma once
#include "colossal/ops/simd.h"

namespace colossal::ops {
namespace {

constexpr int64_t kMatrixRun = 1024;  // elements widened, or squares added up in fp32, at a time

inline Vec<double> load_double(const double* p, Whole whole) { return load(p, whole); }
inline Vec<double> load_double(const float* p, Whole) {
  typedef float Floats __attribute__((vector_size(kVectorBytes / 2)));
  Floats v;
  __builtin_memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, Vec<double>);
}
template <class F>
inline Vec<double> load_double(const F* p, Tail tail) {
  Vec<double> v{};
  for (int64_t i = 0; i < tail.count; ++i) v[i] = static_cast<double>(p[i]);
  return v;
}

/// Adds the squares of a row to `columns` and returns their sum.
template <class F>
double add_row(const F* x, int64_t n, double* columns) {
  constexpr int kStep = kLanes<double>;
  Vec<double> sums[2] = {};  // independent chains of additions
  const auto add = [&](int64_t j, auto part, Vec<double>& sum) __attribute__((always_inline)) {
    const Vec<double> v = load_double(x + j, part), square = v * v;
    store(columns + j, load(columns + j, part) + square, part);
    sum += square;
  };
  int64_t j = 0;
  for (; j + 2 * kStep <= n; j += 2 * kStep) {
    add(j, Whole{}, sums[0]);
    add(j + kStep, Whole{}, sums[1]);
  }
  for_vectors<double>(n - j, [&](int64_t k, auto part) { add(j + k, part, sums[0]); });
  return sum_of<double>(sums[0] + sums[1]);
}

template <class T>
void square_sums(const T* matrix, int64_t stride, int64_t columns, int64_t begin, int64_t end, double* row_sums,
                 double* column_sums) {
  for (int64_t i = begin; i < end; ++i) {
    const T* x = matrix + i * stride;
    if constexpr (std::is_same_v<T, WideOf<T>>) {
      row_sums[i] += add_row(x, columns, column_sums);
    } else {
      float wide[kMatrixRun];
      for (int64_t from = 0; from < columns; from += kMatrixRun) {
        const int64_t count = columns - from < kMatrixRun ? columns - from : kMatrixRun;
        for_vectors<float>(count, [&](int64_t j, auto part) { store(wide + j, load(x + from + j, part), part); });
        row_sums[i] += add_row(wide, count, column_sums + from);
      }
    }
  }
}

template <class T, class F>
double scale_matrix(const ScaledMatrix<T>& a, const F* matrix, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  double total = 0;
  for (int64_t i = begin; i < end; ++i) {
    const F* x = matrix + i * a.from_stride;
    T* y = a.to + i * a.to_stride;
    const W factor = a.row_factors[i];
    for (int64_t from = 0; from < a.columns; from += kMatrixRun) {
      const int64_t count = a.columns - from < kMatrixRun ? a.columns - from : kMatrixRun;
      Vec<W> squares{};
      for_vectors<W>(count, [&](int64_t k, auto part) {
        const int64_t j = from + k;
        const Vec<W> v = load(x + j, part) * factor * load(a.column_factors + j, part);
        store(y + j, v, part);
        squares += v * v;
      });
      for (int lane = 0; lane < kLanes<W>; ++lane) total += static_cast<double>(squares[lane]);
    }
  }
  return total;
}

template <class T>
double scale_matrix(const ScaledMatrix<T>& a, int64_t begin, int64_t end) {
  if constexpr (std::is_same_v<T, float>) {
    if (a.from_type == Narrow::Bf16) return scale_matrix(a, static_cast<const Bf16*>(a.from), begin, end);
    if (a.from_type == Narrow::Half) return scale_matrix(a, static_cast<const Half*>(a.from), begin, end);
  }
  return scale_matrix(a, static_cast<const T*>(a.from), begin, end);
}

}  // namespace
}  // namespace colossal::ops
