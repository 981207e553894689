// Bodies of the activation kernels; see kernels.h.
#pragma once
#include "colossal/ops/lanes.h"

namespace colossal::ops {
namespace {

// gelu_tanh(x) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): an exponential and a division instead of a tanh.
constexpr double kTwiceRootTwoOverPi = 1.59576912160573071176, kGeluCubic = 0.044715;

template <class T>
COLOSSAL_DEVICE void gelu_forward(const T* x, T* y, int64_t n) {
  using W = WideOf<T>;
  for_vectors<W>(n, [&](int64_t i, auto part) {
    const Vec<W> v = load(x + i, part);
    const Vec<W> twice_u = v * (v * v * W(kTwiceRootTwoOverPi * kGeluCubic) + W(kTwiceRootTwoOverPi));
    store(y + i, v * sigmoid<W>(twice_u), part);
  });
}

template <class T>
COLOSSAL_DEVICE void gelu_backward(const T* dy, const T* x, T* dx, int64_t n) {
  using W = WideOf<T>;
  for_vectors<W>(n, [&](int64_t i, auto part) {
    const Vec<W> v = load(x + i, part), square = v * v;
    const Vec<W> s = sigmoid<W>(v * (square * W(kTwiceRootTwoOverPi * kGeluCubic) + W(kTwiceRootTwoOverPi)));
    const Vec<W> slope = square * W(3 * kTwiceRootTwoOverPi * kGeluCubic) + W(kTwiceRootTwoOverPi);
    store(dx + i, load(dy + i, part) * (s + v * s * (W(1) - s) * slope), part);
  });
}

template <class T>
COLOSSAL_DEVICE void swiglu_forward(const GatedRows<const T>& in, T* y, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  for_vectors_of_rows<W>(begin, end, in.columns, [&](int64_t row) {
    const T *gate = in.gate + row * in.gate_stride, *up = in.up + row * in.up_stride;
    T* out = y + row * in.columns;
    return [=](int64_t i, auto part) {
      const Vec<W> g = load(gate + i, part);
      store(out + i, g * sigmoid<W>(g) * load(up + i, part), part);
    };
  });
}

template <class T>
COLOSSAL_DEVICE void swiglu_backward(const T* dy, const GatedRows<const T>& in, const GatedRows<T>& out, int64_t begin,
                                     int64_t end) {
  using W = WideOf<T>;
  for_vectors_of_rows<W>(begin, end, in.columns, [&](int64_t row) {
    const T *gate = in.gate + row * in.gate_stride, *up = in.up + row * in.up_stride, *gradient = dy + row * in.columns;
    T *dgate = out.gate + row * out.gate_stride, *dup = out.up + row * out.up_stride;
    return [=](int64_t i, auto part) {
      const Vec<W> g = load(gate + i, part), d = load(gradient + i, part), s = sigmoid<W>(g);
      store(dup + i, d * g * s, part);
      store(dgate + i, d * load(up + i, part) * s * (W(1) + g * (W(1) - s)), part);
    };
  });
}

}  // namespace
}  // namespace colossal::ops
