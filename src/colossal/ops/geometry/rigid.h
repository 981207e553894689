// Rigid transforms of points, with gradients: rotations as matrices and as quaternions.
//
//   const ops::Rigid frames = ops::rigid_from_points(ca, c, n);                    // [B, N, 3] each -> frames [B, N]
//   const at::Tensor local = frames.inverse().apply(ca);                           // zeros [B, N, 3]
//   const at::Tensor seen = frames.unsqueeze(-1).apply_inverse(ca.unsqueeze(1));   // CA j in frame i, [B, N, N, 3]
//
// Numbers: fp32 or fp64; callers convert narrower tensors (ops::wide_type). Every function is elementwise over the
// leading dimensions, which broadcast.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace colossal::ops {

/// Returns `rotation` x, for rotations [..., 3, 3] and vectors [..., 3].
at::Tensor rotated(const at::Tensor& rotation, const at::Tensor& x);
/// Returns the vectors x [..., 3], rotated by the inverse of `rotation`.
at::Tensor rotated_back(const at::Tensor& rotation, const at::Tensor& x);
/// Returns the sum of squares over the last dimension.
at::Tensor squared_norm(const at::Tensor& x);

/// Transforms x -> R x + t, which are frames: R maps directions of the frame to global ones, and t is its origin.
struct Rigid {
  at::Tensor rotation;     ///< R [..., 3, 3], orthogonal, with determinant 1
  at::Tensor translation;  ///< t [..., 3]

  /// Returns identities of these leading sizes.
  static Rigid identity(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// Returns the global places of points [..., 3] given in the frame.
  at::Tensor apply(const at::Tensor& points) const;
  /// Returns the places in the frame of global points [..., 3].
  at::Tensor apply_inverse(const at::Tensor& points) const;
  /// Returns the transform that applies `first`, then this one.
  Rigid compose(const Rigid& first) const;
  Rigid inverse() const;
  /// Returns views with a leading dimension more; `dim` counts among the leading ones, from the end if negative.
  Rigid unsqueeze(int64_t dim) const;
  Rigid narrow(int64_t dim, int64_t start, int64_t length) const;
  /// Returns transforms of one tensor, flat over the leading dimensions from `dim` on.
  Rigid flatten(int64_t dim) const;
};

/// Joins transforms along a leading dimension, counted from the end if negative.
Rigid joined(const std::vector<Rigid>& all, int64_t dim);

/// Makes frames by Gram-Schmidt (Jumper et al. 2021, supplement, algorithm 21). The first axis points from `origin` to
/// `on_axis`; `in_plane` has a positive second coordinate; the third axis is their cross product.
///
/// Shapes:  points [..., 3]. For the frame of a backbone: origin CA, on_axis C, in_plane N.
/// Numbers: of equal points, such as those of missing atoms, the rotation has columns of zeros, not NaN.
Rigid rigid_from_points(const at::Tensor& origin, const at::Tensor& on_axis, const at::Tensor& in_plane);

/// Squared lengths get this before something is divided by the length, so that zeros stay zeros.
constexpr double kTinySquare = 1e-20;

/// Makes frames from directions instead of points: the first axis is along `axis`. `epsilon` is added to squared
/// lengths.
Rigid rigid_from_axes(const at::Tensor& origin, const at::Tensor& axis, const at::Tensor& aside,
                      double epsilon = kTinySquare);

/// Returns the Hamilton product of quaternions [..., 4], the real part first.
at::Tensor quaternion_product(const at::Tensor& a, const at::Tensor& b);
/// Returns the rotation matrix [..., 3, 3] of unit quaternions [..., 4].
at::Tensor rotation_of_quaternion(const at::Tensor& unit);

/// Frames whose rotations are unit quaternions: the state of a structure module.
struct QuaternionFrames {
  at::Tensor quaternion;   ///< [..., 4], the real part first
  at::Tensor translation;  ///< [..., 3]

  static QuaternionFrames identity(at::IntArrayRef sizes, const at::TensorOptions& options);
  /// Returns the frames with rotation matrices and with translations times `scale`.
  Rigid rigid(double scale = 1) const;
  /// Returns frames moved by updates (b, c, d, x, y, z) [..., 6] in their own axes: the quaternion times (1, b, c, d),
  /// normalised, and the translation plus R (x, y, z), with R before the update (algorithm 23).
  QuaternionFrames updated(const at::Tensor& update) const;
  /// Returns the frames without a gradient through their rotations (algorithm 20, line 20).
  QuaternionFrames with_fixed_rotations() const;
};

}  // namespace colossal::ops
