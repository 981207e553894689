// RMSNorm and LayerNorm over the last dimension, forward and backward each in one pass over the rows.
#pragma once
#include <ATen/core/Tensor.h>

#include "colossal/ops/rank_reduction.h"

namespace colossal::ops {

/// y = x / sqrt(mean(x^2) + epsilon) * (offset + weight).
///
/// Shapes:   x [..., H], weight [H] -> y [..., H].
/// Numbers:  statistics and offset + weight in fp32 for bf16 and fp32, in fp64 for fp64: a weight near 0 keeps its
///           digits beside an offset of 1. Saved for backward: x and one statistic a row.
/// Gradient: of x and weight.
/// Elsewhere: LibTorch's fused operators of accelerators (_fused_rms_norm, native_layer_norm), same statistics; with an
///           offset, of a narrow x, given it in fp32, which is kept too.
/// Errors:   throws if weight is not [H].
/// See:      Zhang and Sennrich, arXiv:1910.07467.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, double offset = 0);

/// y = (x - mean(x)) / sqrt(var(x) + epsilon) * (offset + weight) + bias, biased variance.
/// Shapes: x [..., H], weight [H], bias [H] or undefined. Otherwise as rms_norm (two statistics a row).
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                      double offset = 0);

/// Compute the two norms of rows whose H = `width` features are split over ranks: x [..., H_local], weight and bias
/// [H_local].
///
/// Reductions: in forward a sum of the moments, fp64: [1, rows] (RMSNorm: x^2) or [2, rows] (LayerNorm: x, x^2). In
///             backward a sum of as many, which needs the ranks in the same order. `reduction` must outlive the graph.
at::Tensor split_rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, int64_t width,
                          RankReduction& reduction, double offset = 0);
at::Tensor split_layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                            int64_t width, RankReduction& reduction, double offset = 0);

/// By ATen operators with ATen's autograd, in the dtype of the statistics: the references.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon, double offset = 0);
at::Tensor layer_norm_reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                                double offset = 0);

}  // namespace colossal::ops
