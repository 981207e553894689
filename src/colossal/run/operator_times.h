// Measures operators as a training step runs them, with autograd: for profiles (run/calibrate.h).
//
//   const auto seconds = [&](const std::function<void()>& work) { work(); return timed(work); };
//   const double overhead = run::operator_overhead(at::kFloat, start, seconds);
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace colossal::run {

/// Measures the seconds of one call of its argument.
using SecondsOf = std::function<double(const std::function<void()>&)>;

/// Returns the seconds that an operator of a training step takes besides its kernel: autograd, memory, views. It trains
/// transformer blocks of a few numbers, divides by the operators that a recorded step has for them
/// (tensor/moved_bytes.h), and takes away `start`, the seconds of a kernel without numbers. At least 0.
double operator_overhead(const at::TensorOptions& floats, double start, const SecondsOf& seconds);

/// Returns the operations/s of causal attention, forward and backward, of one row of `tokens` with 4 heads of 64, as
/// tensor::FlopCount counts them: without the scores that backward computes again. The rate depends on the shape; this
/// one stands for all, because recorded steps know only the operations of attention.
double attention_rate(const at::TensorOptions& floats, at::ScalarType dtype, int64_t tokens, const SecondsOf& seconds);

}  // namespace colossal::run
