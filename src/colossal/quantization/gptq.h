// Codes whose errors the weights behind them make good: GPTQ (Frantar and others, arXiv:2210.17323).
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/group_codes.h"

namespace colossal::quantization {

/// Codes of `weight` [out, in] for inputs with these second moments, [in, in], the sum of x xt. Columns are rounded in
/// their order, and each column's error is passed on to those behind it as the moments say, so that the sum over the
/// inputs of |W x - Q x|^2 gets small. Scales of a group are of its numbers as they are when its turn comes.
///
/// Numbers: moments are damped by 1 % of their mean diagonal, and factored in fp64; weights are in fp32. Where moments
///          are a multiple of the identity the codes are those of ops::round_to_codes, bit for bit.
/// Errors ("quantization"): moments of another shape or that are not finite, those of ops::round_to_codes.
/// Cost: in^3 for the factors, out in^2 for the errors.
ops::GroupCodes gptq(const at::Tensor& weight, const at::Tensor& moments, const ops::RoundingOptions& options);

/// The sum over the inputs of |weight x - near x|^2, by their second moments.
double output_error(const at::Tensor& weight, const at::Tensor& near, const at::Tensor& moments);

}  // namespace colossal::quantization
