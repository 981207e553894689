// Tensors whose values identify their rank. The values are so small that sums are exact in every dtype.
#pragma once
#include <ATen/ATen.h>

namespace colossal::test {

/// Returns a tensor in which element i of rank r is (7 r + i) mod 5 + 1; for bool it is (7 r + i) mod 2. A sum over 8
/// ranks is at most 40, which is exact in bf16 and fp16.
at::Tensor rank_values(int rank, int64_t numel, at::ScalarType dtype);

/// Returns true if dtype and sizes are equal and contents are bitwise equal.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace colossal::test
