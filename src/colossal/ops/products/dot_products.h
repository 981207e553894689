// Products with matrices of few rows, such as a router's, whose operands need no preparation.
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Returns x wt, without autograd: x [T, K], w [N, K] -> [T, N] in fp32, or fp64 for fp64. The result is not rounded to
/// the dtype of x. Each element depends on its row of x and its row of w alone, so a row has the same bits beside any
/// other rows.
/// Dtypes: fp64, fp32, bf16 with our kernels; others are converted.
/// Errors ("matmul"): operands of different dtypes or sizes.
/// Cost:   T N K multiplications without reuse of registers. For large N, use matmul_nt().
at::Tensor dot_products(const at::Tensor& x, const at::Tensor& w);

}  // namespace colossal::ops
