// Rows of numbers in codes of 8 bits with a scale each: what a cache may hold of keys and values (paged_attention.h),
// and weights in 8 bits of floating point (prepacked_matrix.h).
//
//   const RowCodes coded = encode_rows(k, at::kChar);           // k [T, N_kv, D]: a scale a token and head
//   const at::Tensor near = coded.codes.to(at::kFloat) * coded.scales.unsqueeze(-1);
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

struct RowCodes {
  at::Tensor codes;   ///< [..., D]
  at::Tensor scales;  ///< fp32 [...]
};

/// Each row by itself, its largest magnitude becomes the largest code: of int8 127, so numbers are at most 1/254 of it
/// off; of fp8 (e4m3) 448, at most 1/16 of themselves, or 2^-19 of the largest. What is no number, or infinite, makes
/// its row NaN. x [..., D] fp64, fp32, bf16 or fp16; `dtype` kChar or kFloat8_e4m3fn.
RowCodes encode_rows(const at::Tensor& x, at::ScalarType dtype);

}  // namespace colossal::ops
