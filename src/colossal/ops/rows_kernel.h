// Bodies of the rotary, softmax and reduction kernels; see kernels.h.
#pragma once
#include "colossal/ops/lanes.h"

namespace colossal::ops {
namespace {

/// Source and destination of one head of a row.
template <class T>
struct TurnedHead {
  COLOSSAL_DEVICE TurnedHead(const RotaryRows<T>& a, int64_t row, int64_t head)
      : x(a.x + row * a.x_row_stride + head * a.x_head_stride), y(a.y + (row * a.heads + head) * a.head_size) {}
  const T* x;
  T* y;
};

template <class T, class Part>
COLOSSAL_DEVICE void turn_pairs(const TurnedHead<T>& head, int64_t half, int64_t i, const Vec<WideOf<T>>& c,
                                const Vec<WideOf<T>>& s, Part part) {
  using W = WideOf<T>;
  const Vec<W> left = load(head.x + i, part), right = load(head.x + half + i, part);
  store(head.y + i, left * c - right * s, part);
  store(head.y + half + i, right * c + left * s, part);
}

template <class T>
COLOSSAL_DEVICE void rotary_rows(const RotaryRows<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  const int64_t half = a.rotated / 2;
  for (int64_t row = begin; row < end; ++row) {
    const W *cosine = a.cos_sin + a.positions[row] * a.rotated, *sine = cosine + half;
    for_vectors_of_rows<W>(0, a.heads, half, [&](int64_t head) {
      const TurnedHead<T> at(a, row, head);
      return [=, sign = a.sign](int64_t i, auto part) {
        turn_pairs(at, half, i, load(cosine + i, part), load(sine + i, part) * sign, part);
      };
    });
    if (a.rotated == a.head_size) continue;
    for_vectors_of_rows<W>(0, a.heads, a.head_size - a.rotated, [&](int64_t head) {
      const TurnedHead<T> at(a, row, head);
      return [=, from = a.rotated](int64_t i, auto part) { store(at.y + from + i, load(at.x + from + i, part), part); };
    });
  }
}

#if defined(COLOSSAL_SIMT)
constexpr int64_t kTurnedHeads = 16;  // heads rotated by the thread that computed their angles

template <class T>
COLOSSAL_DEVICE int64_t head_groups(const RotaryRows<T>& a) {
  return (a.heads + kTurnedHeads - 1) / kTurnedHeads;
}

/// Heads [first, last) of a row: one group.
template <class T>
struct HeadGroup {
  COLOSSAL_DEVICE HeadGroup(const RotaryRows<T>& a, int64_t group)
      : row(group / head_groups(a)), first(group % head_groups(a) * kTurnedHeads) {
    last = first + kTurnedHeads < a.heads ? first + kTurnedHeads : a.heads;
  }
  int64_t row, first, last;
};

/// Rotates groups of heads [begin, end), head_groups() per row. Angles are computed in fp64, because fp32 loses the
/// phase of high frequencies at long positions. They are computed once for all heads of a group.
template <class T>
COLOSSAL_DEVICE void rotary_by_frequencies(const RotaryRows<T>& a, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  const int64_t half = a.rotated / 2;
  for_vectors_of_rows<W>(begin, end, half, [&](int64_t group) {
    return [&a, half, heads = HeadGroup<T>(a, group)](int64_t i, auto part) {
      const Vec<double> angle = load(a.frequencies + i, part) * static_cast<double>(a.positions[heads.row]);
      Vec<W> c, s;
      for (int lane = 0; lane < kLanes<W>; ++lane) {
        c[lane] = static_cast<W>(cos(angle[lane])) * a.factor;
        s[lane] = static_cast<W>(sin(angle[lane])) * a.factor * a.sign;
      }
      for (int64_t head = heads.first; head < heads.last; ++head)
        turn_pairs(TurnedHead<T>(a, heads.row, head), half, i, c, s, part);
    };
  });
  if (a.rotated == a.head_size) return;
  for_vectors_of_rows<W>(begin, end, a.head_size - a.rotated, [&](int64_t group) {
    return [&a, heads = HeadGroup<T>(a, group)](int64_t i, auto part) {
      for (int64_t head = heads.first; head < heads.last; ++head) {
        const TurnedHead<T> at(a, heads.row, head);
        store(at.y + a.rotated + i, load(at.x + a.rotated + i, part), part);
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

// Sums short runs in the computing type and adds these sums in double: fp32 squares lose digits only within a run.
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
