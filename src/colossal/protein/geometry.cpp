#include "colossal/protein/geometry.h"

#include <cmath>

namespace colossal::protein {

double norm(const Point& a) { return std::sqrt(dot(a, a)); }

double distance(const Point& a, const Point& b) { return norm(a - b); }

Frame Frame::after(const Frame& first) const {
  const Point x{first.rows[0].x, first.rows[1].x, first.rows[2].x},
      y{first.rows[0].y, first.rows[1].y, first.rows[2].y}, z{first.rows[0].z, first.rows[1].z, first.rows[2].z};
  Frame both;
  for (size_t i = 0; i < 3; ++i) both.rows[i] = {dot(rows[i], x), dot(rows[i], y), dot(rows[i], z)};
  both.origin = apply(first.origin);
  return both;
}

Frame frame_of_axes(const Point& x, const Point& y, const Point& origin) {
  const Point e1 = (1 / norm(x)) * x;
  const Point across = y - dot(y, e1) * e1;
  const Point e2 = (1 / norm(across)) * across;
  const Point e3 = cross(e1, e2);
  return {{{{e1.x, e2.x, e3.x}, {e1.y, e2.y, e3.y}, {e1.z, e2.z, e3.z}}}, origin};
}

Frame backbone_frame(const Point& n, const Point& ca, const Point& c) { return frame_of_axes(c - ca, n - ca, ca); }

Point virtual_c_beta(const Point& n, const Point& ca, const Point& c) {
  const Point to_ca = ca - n, to_c = c - ca, normal = cross(to_ca, to_c);
  return -.58273431 * normal + .56802827 * to_ca - .54067466 * to_c + ca;
}

double torsion(const Point& a, const Point& b, const Point& c, const Point& d) {
  const Point axis = c - b, first = cross(b - a, axis), second = cross(axis, d - c);
  const double sine = dot(cross(first, second), axis) / norm(axis), cosine = dot(first, second);
  const double angle = std::atan2(sine, cosine);
  return std::isfinite(angle) ? angle : 0;
}

}  // namespace colossal::protein
