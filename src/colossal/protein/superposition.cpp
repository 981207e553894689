#include "colossal/protein/superposition.h"

#include <array>
#include <cmath>

#include "colossal/base/error.h"

namespace colossal::protein {
namespace {

using Matrix4 = std::array<std::array<double, 4>, 4>;

Point mean_of(std::span<const Point> points) {
  Point sum;
  for (const Point& point : points) sum = sum + point;
  return (1 / static_cast<double>(points.size())) * sum;
}

/// Turns the rows and columns p and q of a symmetric matrix so that its element (p, q) becomes 0.
void rotate_pair(Matrix4& a, Matrix4& vectors, size_t p, size_t q) {
  if (a[p][q] == 0) return;
  const double theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
  const double t = std::copysign(1.0, theta) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1), s = t * c;
  for (size_t k = 0; k < 4; ++k) {
    const double kp = a[k][p], kq = a[k][q];
    a[k][p] = c * kp - s * kq;
    a[k][q] = s * kp + c * kq;
  }
  for (size_t k = 0; k < 4; ++k) {
    const double pk = a[p][k], qk = a[q][k];
    a[p][k] = c * pk - s * qk;
    a[q][k] = s * pk + c * qk;
  }
  for (auto& row : vectors) {
    const double rp = row[p], rq = row[q];
    row[p] = c * rp - s * rq;
    row[q] = s * rp + c * rq;
  }
}

/// Returns the eigenvector of the largest eigenvalue of a symmetric matrix, by Jacobi's rotations.
std::array<double, 4> largest_eigenvector(Matrix4 a) {
  Matrix4 vectors{};
  for (size_t i = 0; i < 4; ++i) vectors[i][i] = 1;
  constexpr int kSweeps = 30;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double outside = 0, inside = 0;
    for (size_t p = 0; p < 4; ++p) {
      inside += std::abs(a[p][p]);
      for (size_t q = p + 1; q < 4; ++q) outside += std::abs(a[p][q]);
    }
    if (!(outside > 1e-17 * inside)) break;
    for (size_t p = 0; p < 4; ++p)
      for (size_t q = p + 1; q < 4; ++q) rotate_pair(a, vectors, p, q);
  }
  size_t best = 0;
  for (size_t i = 1; i < 4; ++i)
    if (a[i][i] > a[best][best]) best = i;
  return {vectors[0][best], vectors[1][best], vectors[2][best], vectors[3][best]};
}

Frame rotation_of(const std::array<double, 4>& quaternion) {
  const auto [w, x, y, z] = quaternion;
  Frame frame;
  frame.rows[0] = {w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)};
  frame.rows[1] = {2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)};
  frame.rows[2] = {2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z};
  return frame;
}

}  // namespace

Superposition superpose(std::span<const Point> moved, std::span<const Point> fixed) {
  require(!moved.empty() && moved.size() == fixed.size(), "protein",
          "points to superpose must be as many as the others, at least one: got ", moved.size(), " and ", fixed.size());
  const Point from = mean_of(moved), to = mean_of(fixed);
  std::array<Point, 3> s;  // s[i] = sum of the i-th coordinate of `moved` times `fixed`, both about their means
  for (size_t i = 0; i < moved.size(); ++i) {
    const Point a = moved[i] - from, b = fixed[i] - to;
    s[0] = s[0] + a.x * b;
    s[1] = s[1] + a.y * b;
    s[2] = s[2] + a.z * b;
  }
  const double xx = s[0].x, xy = s[0].y, xz = s[0].z, yx = s[1].x, yy = s[1].y, yz = s[1].z, zx = s[2].x, zy = s[2].y,
               zz = s[2].z;
  const Matrix4 horn{{{xx + yy + zz, yz - zy, zx - xz, xy - yx},
                      {yz - zy, xx - yy - zz, xy + yx, zx + xz},
                      {zx - xz, xy + yx, yy - xx - zz, yz + zy},
                      {xy - yx, zx + xz, yz + zy, zz - xx - yy}}};
  Superposition best{rotation_of(largest_eigenvector(horn)), 0};
  best.transform.origin = to - best.transform.rotate(from);
  double squares = 0;
  for (size_t i = 0; i < moved.size(); ++i) {
    const Point apart = best.transform.apply(moved[i]) - fixed[i];
    squares += dot(apart, apart);
  }
  best.rmsd = std::sqrt(squares / static_cast<double>(moved.size()));
  return best;
}

}  // namespace colossal::protein
