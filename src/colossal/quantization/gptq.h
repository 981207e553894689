// GPTQ: weight quantization that compensates each column's rounding error in the later columns (Frantar and others,
// arXiv:2210.17323).
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/products/group_codes.h"

namespace colossal::quantization {

/// Quantizes `weight` [out, in] for inputs with the second moments `moments` [in, in], the sum of x xt. Columns are
/// rounded in order. The error of each column is distributed over the later columns according to the moments. This
/// makes the sum over the inputs of |W x - Q x|^2 small. The scales of a group are computed from its weights after all
/// earlier errors were distributed.
///
/// Numbers: moments are damped by 1 % of their mean diagonal, and factored in fp64; weights are in fp32. If the moments
///          are a multiple of the identity, the result equals that of ops::round_to_codes bit for bit.
/// Errors ("quantization"): moments of another shape or that are not finite; the errors of ops::round_to_codes.
/// Cost: in^3 for the factors, out in^2 for the errors.
ops::GroupCodes gptq(const at::Tensor& weight, const at::Tensor& moments, const ops::RoundingOptions& options);

/// Returns the sum over the inputs of |weight x - near x|^2, computed from their second moments.
double output_error(const at::Tensor& weight, const at::Tensor& near, const at::Tensor& moments);

}  // namespace colossal::quantization
