// Bodies of the activation kernels; see kernels.h.
#pragma once
#include "colossal/ops/lanes.h"

namespace colossal::ops {
namespace {

// gelu_tanh(x) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3): one exponential and one division instead of a tanh.
constexpr double kTwiceRootTwoOverPi = 1.59576912160573071176, kGeluCubic = 0.044715;

/// Value of a gate function at x, and its derivative there.
template <class W>
struct Gated {
  Vec<W> value, slope;
};

struct SiluGate {
  template <class W>
  static COLOSSAL_DEVICE Gated<W> at(const Vec<W>& x) {
    const Vec<W> s = sigmoid<W>(x);
    return {x * s, s * (W(1) + x * (W(1) - s))};
  }
};
struct GeluGate {
  template <class W>
  static COLOSSAL_DEVICE Gated<W> at(const Vec<W>& x) {
    const Vec<W> square = x * x;
    const Vec<W> s = sigmoid<W>(x * (square * W(kTwiceRootTwoOverPi * kGeluCubic) + W(kTwiceRootTwoOverPi)));
    const Vec<W> slope = square * W(3 * kTwiceRootTwoOverPi * kGeluCubic) + W(kTwiceRootTwoOverPi);
    return {x * s, s + x * s * (W(1) - s) * slope};
  }
};

struct SigmoidGate {
  template <class W>
  static COLOSSAL_DEVICE Gated<W> at(const Vec<W>& x) {
    const Vec<W> s = sigmoid<W>(x);
    return {s, s * (W(1) - s)};
  }
};

template <class T>
COLOSSAL_DEVICE void gelu_forward(const T* x, T* y, int64_t n) {
  using W = WideOf<T>;
  for_vectors<W>(n, [&](int64_t i, auto part) { store(y + i, GeluGate::at<W>(load(x + i, part)).value, part); });
}

template <class T>
COLOSSAL_DEVICE void gelu_backward(const T* dy, const T* x, T* dx, int64_t n) {
  using W = WideOf<T>;
  for_vectors<W>(n, [&](int64_t i, auto part) {
    store(dx + i, load(dy + i, part) * GeluGate::at<W>(load(x + i, part)).slope, part);
  });
}

/// Computes Gate(gate) * up.
template <class Gate, class T>
COLOSSAL_DEVICE void gated_forward(const GatedRows<const T>& in, T* y, int64_t begin, int64_t end) {
  using W = WideOf<T>;
  for_vectors_of_rows<W>(begin, end, in.columns, [&](int64_t row) {
    const T *gate = in.gate + row * in.gate_stride, *up = in.up + row * in.up_stride;
    T* out = y + row * in.columns;
    return [=](int64_t i, auto part) {
      store(out + i, Gate::template at<W>(load(gate + i, part)).value * load(up + i, part), part);
    };
  });
}

template <class Gate, class T>
COLOSSAL_DEVICE void gated_backward(const T* dy, const GatedRows<const T>& in, const GatedRows<T>& out, int64_t begin,
                                    int64_t end) {
  using W = WideOf<T>;
  for_vectors_of_rows<W>(begin, end, in.columns, [&](int64_t row) {
    const T *gate = in.gate + row * in.gate_stride, *up = in.up + row * in.up_stride, *gradient = dy + row * in.columns;
    T *dgate = out.gate + row * out.gate_stride, *dup = out.up + row * out.up_stride;
    return [=](int64_t i, auto part) {
      const Gated<W> g = Gate::template at<W>(load(gate + i, part));
      const Vec<W> d = load(gradient + i, part), u = load(up + i, part);
      store(dup + i, d * g.value, part);
      store(dgate + i, d * u * g.slope, part);
    };
  });
}

}  // namespace
}  // namespace colossal::ops
