// RMSNorm and LayerNorm over the last dimension. Forward and backward take one pass over the rows each.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/rank_reduction.h"

namespace colossal::ops {

/// Computes y = x / sqrt(mean(x^2) + epsilon) * (offset + weight).
///
/// Shapes:   x [..., H], weight [H] -> y [..., H].
/// Numbers:  statistics and offset + weight are computed in fp32 for bf16 and fp32, in fp64 for fp64. A weight near 0
///           then keeps its digits when it is added to an offset of 1. Saved for backward: x and one statistic per row.
/// Gradient: of x and weight.
/// Devices:  accelerators run LibTorch's fused operators (_fused_rms_norm, native_layer_norm), with the same
///           statistics. If there is an offset and x is bf16 or fp16, x is converted to fp32 for them, and that copy is
///           saved too.
/// Errors:   throws if weight is not [H].
/// See:      Zhang and Sennrich, arXiv:1910.07467.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, double offset = 0);

/// Computes y = (x - mean(x)) / sqrt(var(x) + epsilon) * (offset + weight) + bias, with the biased variance. Shapes: x
/// [..., H], weight [H], bias [H] or undefined. All else is as for rms_norm, with two statistics per row.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                      double offset = 0);

/// Compute the two norms for rows whose H = `width` features are split over ranks: x [..., H_local], weight and bias
/// [H_local].
///
/// Reductions: in forward one sum of the moments in fp64: [1, rows] (RMSNorm: x^2) or [2, rows] (LayerNorm: x, x^2). In
///             backward one sum of the same size; all ranks must run backward in the same order. `reduction` must
///             outlive the graph.
at::Tensor split_rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, int64_t width,
                          RankReduction& reduction, double offset = 0);
at::Tensor split_layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                            int64_t width, RankReduction& reduction, double offset = 0);

/// References: the norms from ATen operators with ATen's autograd, in the dtype of the statistics.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon, double offset = 0);
at::Tensor layer_norm_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                                double offset = 0);

}  // namespace colossal::ops
