// Bodies of the rotary, softmax and reduction kernels; see kernels.h.
#pragma once
#include "colossal/ops/lanes.h"

namespace colossal::ops {
namespace {

template <class T>
COLOSSAL_DEVICE void rotary_rows(const RotaryRows<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  const int64_t half = a.head_size / 2;
  for (int64_t row = begin; row < end; ++row) {
    const W *cosine = a.cos_sin + a.positions[row] * a.head_size, *sine = cosine + half;
    for_vectors_of_rows<W>(0, a.heads, half, [&](int64_t head) {
      const T* x = a.x + row * a.x_row_stride + head * a.x_head_stride;
      T* y = a.y + (row * a.heads + head) * a.head_size;
      return [=, sign = a.sign](int64_t i, auto part) {
        const Vec<W> c = load(cosine + i, part), s = load(sine + i, part) * sign;
        const Vec<W> left = load(x + i, part), right = load(x + half + i, part);
        store(y + i, left * c - right * s, part);
        store(y + half + i, right * c + left * s, part);
      };
    });
  }
}

#if defined(COLOSSAL_SIMT)
constexpr int64_t kTurnedHeads = 16;  // by the thread that made their angles

template <class T>
COLOSSAL_DEVICE int64_t head_groups(const RotaryRows<T>& a) {
  return (a.heads + kTurnedHeads - 1) / kTurnedHeads;
}

/// The same for groups of heads [begin, end), head_groups() a row, by angles in fp64, as fp32 loses the phase of high
/// frequencies at long positions: made once for all heads of a group.
template <class T>
COLOSSAL_DEVICE void rotary_by_frequencies(const RotaryRows<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  const int64_t half = a.head_size / 2, groups = head_groups(a);
  for_vectors_of_rows<W>(begin, end, half, [&](int64_t group) {
    const int64_t row = group / groups, first = group % groups * kTurnedHeads, behind = first + kTurnedHeads;
    return [&a, row, first, last = behind < a.heads ? behind : a.heads, half](int64_t i, auto part) {
      const Vec<double> angle = load(a.frequencies + i, part) * static_cast<double>(a.positions[row]);
      Vec<W> c, s;
      for (int lane = 0; lane < kLanes<W>; ++lane) {
        c[lane] = static_cast<W>(cos(angle[lane]));
        s[lane] = static_cast<W>(sin(angle[lane])) * a.sign;
      }
      for (int64_t head = first; head < last; ++head) {
        const T* x = a.x + row * a.x_row_stride + head * a.x_head_stride;
        T* y = a.y + (row * a.heads + head) * a.head_size;
        const Vec<W> left = load(x + i, part), right = load(x + half + i, part);
        store(y + i, left * c - right * s, part);
        store(y + half + i, right * c + left * s, part);
      }
    };
  });
}
#endif

template <class T>
void column_sums(const T* x, int64_t columns, int64_t begin, int64_t end, WideOf<T>* out) {
  using W = WideOf<T>;
  for (int64_t row = begin; row < end; ++row) {
    const T* line = x + row * columns;
    for_vectors<W>(columns,
                   [&](int64_t i, auto part) { store(out + i, load(out + i, part) + load(line + i, part), part); });
  }
}

// Short runs in the computing type, their sums in double: fp32 squares lose digits only within a run.
template <class T>
double sum_of_squares(const T* x, int64_t n) {
  using W = WideOf<T>;
  constexpr int64_t kRun = 1024;
  double total = 0;
  for (int64_t from = 0; from < n; from += kRun) {
    const int64_t count = n - from < kRun ? n - from : kRun;
    Vec<W> squares[4] = {};
    int64_t i = 0;
    for (; i + 4 * kLanes<W> <= count; i += 4 * kLanes<W>)
      for (int k = 0; k < 4; ++k) {
        const Vec<W> v = load(x + from + i + k * kLanes<W>, Whole{});
        squares[k] += v * v;
      }
    for_vectors<W>(count - i, [&](int64_t j, auto part) {
      const Vec<W> v = load(x + from + i + j, part);
      squares[0] += v * v;
    });
    for (int lane = 0; lane < kLanes<W>; ++lane)
      total += static_cast<double>(squares[0][lane]) + squares[1][lane] + squares[2][lane] + squares[3][lane];
  }
  return total;
}

template <class T>
COLOSSAL_DEVICE WideOf<T> row_max(const T* x, int64_t n) {
  using W = WideOf<T>;
  const W lowest = -static_cast<W>(__builtin_inf());
  Vec<W> best[2] = {splat<W>(lowest), splat<W>(lowest)};
  for_chains<W, 2>(n, [&](int64_t i, int chain, auto part) {
    const Vec<W> v = only<W>(load(x + i, part), part, lowest);
    best[chain] = select(v > best[chain], v, best[chain]);
  });
  return max_of<W>(select(best[0] > best[1], best[0], best[1]));
}

template <class T>
COLOSSAL_DEVICE WideOf<T> row_exp(T* x, int64_t n, WideOf<T> shift) {
  using W = WideOf<T>;
  Vec<W> total{};
  for_vectors<W>(n, [&](int64_t i, auto part) {
    const Vec<W> e = exp_of<W>(load(x + i, part) - shift);
    total += only<W>(e, part, W(0));
    store(x + i, e, part);
  });
  return sum_of<W>(total);
}

template <class T>
COLOSSAL_DEVICE void row_scale(T* x, int64_t n, WideOf<T> factor) {
  for_vectors<WideOf<T>>(n, [&](int64_t i, auto part) { store(x + i, load(x + i, part) * factor, part); });
}

}  // namespace
}  // namespace colossal::ops
