// Peak speed of matrix products on this machine: the reference for utilisation.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Returns the floating point operations per second of matmul_nt on 1024 x 1024 matrices, with this thread's thread
/// count. It is the best of the repetitions that fit in `seconds`, at least one. On accelerators, time is measured
/// between events of the current stream. There the sides of the matrices are doubled, up to 8192, until a product takes
/// 2 ms, because the launch time would distort shorter measurements.
double matmul_peak(at::ScalarType dtype, at::Device device, double seconds);

}  // namespace colossal::ops
