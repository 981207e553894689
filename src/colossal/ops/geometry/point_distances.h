// Squared distances of sets of points, as in invariant point attention.
//
//   const at::Tensor d = ops::summed_squared_distances(q, k);     // [B, N, H, P, 3], [B, M, H, P, 3] -> [B, H, N, M]
#pragma once
#include <ATen/core/Tensor.h>

namespace colossal::ops {

/// Returns the sum over P points of |q_ip - k_jp|^2 for each pair (i, j) and head.
///
/// Shapes:   q [B, N, H, P, 3], k [B, M, H, P, 3] of one dtype, fp32 or fp64 -> [B, H, N, M].
/// Numbers:  differences of coordinates are squared, so near points far from the origin lose no digits.
/// Gradient: of q and k. Backward uses two products and keeps q and k alone; no tensor has both pairs and points.
/// Memory:   the result and a slice of it.
/// Errors ("geometry"): sizes that do not fit.
at::Tensor summed_squared_distances(const at::Tensor& q, const at::Tensor& k);

}  // namespace colossal::ops
