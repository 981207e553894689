// Rows quantized to 8 bits with one scale per row. A KV cache may store keys and values like this
// (ops/attention/paged.h), and so may weights in 8-bit floating point (prepacked_matrix.h).
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

/// Quantizes each row on its own; its largest magnitude gets the largest code. For int8 that is 127, so values are off
/// by at most 1/254 of it. For fp8 (e4m3) it is 448; values are off by at most 1/16 of themselves, or 2^-10 / 448 of
/// the largest. A NaN or infinite value makes its whole row NaN. x [..., D] is fp64, fp32, bf16 or fp16; `dtype` is
/// kChar or kFloat8_e4m3fn.
RowCodes encode_rows(const at::Tensor& x, at::ScalarType dtype);

}  // namespace colossal::ops
