// What this machine reaches at best: the yardstick of utilisation.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Floating point operations a second of matmul_nt on 1024 x 1024 matrices, the best of the repetitions that fit in
/// `seconds` (at least one), with this thread's thread count. On accelerators between events of the current stream, and
/// of matrices twice as large again and again, up to 8192 x 8192, until a product takes 2 ms: what a launch takes
/// would show in shorter ones.
double matmul_peak(at::ScalarType dtype, at::Device device, double seconds);

}  // namespace colossal::ops
