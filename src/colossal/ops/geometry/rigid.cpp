#include "colossal/ops/geometry/rigid.h"

#include <ATen/ATen.h>

#include <vector>

// Products are written by components, because LibTorch's batched products of 3 x 3 matrices take longer than their
// memory. Steps are also recorded on meta, where cross(), where() and the gradient of clamp() do not run.

namespace colossal::ops {
namespace {

at::Tensor unit_vector(const at::Tensor& x, double epsilon = kTinySquare) {
  return x / (squared_norm(x) + epsilon).sqrt().unsqueeze(-1);
}

at::Tensor cross_product(const at::Tensor& a, const at::Tensor& b) {
  const std::vector<at::Tensor> p = a.unbind(-1), q = b.unbind(-1);
  return at::stack({p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]}, -1);
}

std::vector<int64_t> with_sizes(at::IntArrayRef sizes, std::initializer_list<int64_t> last) {
  std::vector<int64_t> all = sizes.vec();
  all.insert(all.end(), last);
  return all;
}

/// Returns a dimension among the leading ones as one of a tensor with `own` more dimensions.
int64_t leading_dim(int64_t dim, int64_t own) { return dim < 0 ? dim - own : dim; }

}  // namespace

at::Tensor rotated(const at::Tensor& rotation, const at::Tensor& x) { return (rotation * x.unsqueeze(-2)).sum(-1); }

at::Tensor rotated_back(const at::Tensor& rotation, const at::Tensor& x) {
  return (rotation * x.unsqueeze(-1)).sum(-2);
}

at::Tensor squared_norm(const at::Tensor& x) { return x.square().sum(-1); }

Rigid Rigid::identity(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return {at::eye(3, options).expand(with_sizes(sizes, {3, 3})), at::zeros(with_sizes(sizes, {3}), options)};
}

at::Tensor Rigid::apply(const at::Tensor& points) const { return rotated(rotation, points) + translation; }

at::Tensor Rigid::apply_inverse(const at::Tensor& points) const { return rotated_back(rotation, points - translation); }

Rigid Rigid::compose(const Rigid& first) const {
  const at::Tensor product = (rotation.unsqueeze(-1) * first.rotation.unsqueeze(-3)).sum(-2);
  return {product, apply(first.translation)};
}

Rigid Rigid::inverse() const { return {rotation.transpose(-1, -2), -rotated_back(rotation, translation)}; }

Rigid Rigid::unsqueeze(int64_t dim) const {
  return {rotation.unsqueeze(leading_dim(dim, 2)), translation.unsqueeze(leading_dim(dim, 1))};
}

Rigid Rigid::narrow(int64_t dim, int64_t start, int64_t length) const {
  return {rotation.narrow(leading_dim(dim, 2), start, length), translation.narrow(leading_dim(dim, 1), start, length)};
}

Rigid Rigid::flatten(int64_t dim) const {
  return {rotation.flatten(leading_dim(dim, 2), -3), translation.flatten(leading_dim(dim, 1), -2)};
}

Rigid joined(const std::vector<Rigid>& all, int64_t dim) {
  std::vector<at::Tensor> rotations, translations;
  for (const Rigid& one : all) rotations.push_back(one.rotation), translations.push_back(one.translation);
  return {at::cat(rotations, leading_dim(dim, 2)), at::cat(translations, leading_dim(dim, 1))};
}

Rigid rigid_from_points(const at::Tensor& origin, const at::Tensor& on_axis, const at::Tensor& in_plane) {
  return rigid_from_axes(origin, on_axis - origin, in_plane - origin);
}

Rigid rigid_from_axes(const at::Tensor& origin, const at::Tensor& axis, const at::Tensor& aside, double epsilon) {
  const at::Tensor first = unit_vector(axis, epsilon);
  const at::Tensor second = unit_vector(aside - first * (first * aside).sum(-1, /*keepdim=*/true), epsilon);
  return {at::stack({first, second, cross_product(first, second)}, -1), origin};
}

at::Tensor quaternion_product(const at::Tensor& a, const at::Tensor& b) {
  const std::vector<at::Tensor> p = a.unbind(-1), q = b.unbind(-1);
  return at::stack(
      {p[0] * q[0] - p[1] * q[1] - p[2] * q[2] - p[3] * q[3], p[0] * q[1] + p[1] * q[0] + p[2] * q[3] - p[3] * q[2],
       p[0] * q[2] - p[1] * q[3] + p[2] * q[0] + p[3] * q[1], p[0] * q[3] + p[1] * q[2] - p[2] * q[1] + p[3] * q[0]},
      -1);
}

at::Tensor rotation_of_quaternion(const at::Tensor& unit) {
  const std::vector<at::Tensor> q = unit.unbind(-1);
  const at::Tensor a = q[0], b = q[1], c = q[2], d = q[3];
  const at::Tensor aa = a * a, bb = b * b, cc = c * c, dd = d * d;
  const at::Tensor ab = 2 * a * b, ac = 2 * a * c, ad = 2 * a * d, bc = 2 * b * c, bd = 2 * b * d, cd = 2 * c * d;
  const std::vector<at::Tensor> elements{aa + bb - cc - dd, bc - ad, bd + ac, bc + ad,          aa - bb + cc - dd,
                                         cd - ab,           bd - ac, cd + ab, aa - bb - cc + dd};
  return at::stack(elements, -1).unflatten(-1, at::IntArrayRef{3, 3});
}

QuaternionFrames QuaternionFrames::identity(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::Tensor real = at::ones(with_sizes(sizes, {1}), options), zeros = at::zeros(with_sizes(sizes, {3}), options);
  return {at::cat({real, zeros}, -1), zeros};
}

Rigid QuaternionFrames::rigid(double scale) const {
  return {rotation_of_quaternion(quaternion), scale == 1 ? translation : translation * scale};
}

QuaternionFrames QuaternionFrames::updated(const at::Tensor& update) const {
  const at::Tensor turn = update.narrow(-1, 0, 3), shift = update.narrow(-1, 3, 3);
  const at::Tensor turned =
      quaternion + quaternion_product(quaternion, at::cat({at::zeros_like(turn.narrow(-1, 0, 1)), turn}, -1));
  return {unit_vector(turned), translation + rotated(rotation_of_quaternion(quaternion), shift)};
}

QuaternionFrames QuaternionFrames::with_fixed_rotations() const { return {quaternion.detach(), translation}; }

}  // namespace colossal::ops
