// Keys and values of tokens in codes of 8 bits, as pages may hold them: half the bytes of bf16 and 4 more a token and
// head.
//
//   const CodedTokens coded = encode_tokens(k, at::kChar);           // k [T, N_kv, D]
//   const at::Tensor near = coded.codes.to(at::kFloat) * coded.scales.unsqueeze(-1);
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

struct CodedTokens {
  at::Tensor codes;   ///< [T, N, D]
  at::Tensor scales;  ///< fp32 [T, N]
};

/// Each head of each token by itself, its largest magnitude becomes the largest code: of int8 127, so numbers are at
/// most 1/254 of it off; of fp8 (e4m3) 448, at most 1/16 of themselves, or 2^-19 of the largest. What is no number, or
/// infinite, makes a head of a token NaN. x [T, N, D] fp64, fp32, bf16 or fp16; `dtype` kChar or kFloat8_e4m3fn.
CodedTokens encode_tokens(const at::Tensor& x, at::ScalarType dtype);

}  // namespace colossal::ops
