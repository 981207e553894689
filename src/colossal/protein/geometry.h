// Points, frames and torsions as plain numbers of double precision. Models use tensors; tables, data and comparisons
// use these.
//
//   const protein::Frame frame = protein::backbone_frame({1, 2, 0}, {0, 1, .5}, {-1, .5, 2});
//   const protein::Point tip = frame.apply({-0.529, -0.774, -1.205});
#pragma once
#include <array>

namespace colossal::protein {

/// A point or vector, in Angstrom.
struct Point {
  double x = 0, y = 0, z = 0;
  bool operator==(const Point&) const = default;
};

inline Point operator+(const Point& a, const Point& b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
inline Point operator-(const Point& a, const Point& b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
inline Point operator*(double factor, const Point& a) { return {factor * a.x, factor * a.y, factor * a.z}; }
inline double dot(const Point& a, const Point& b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
inline Point cross(const Point& a, const Point& b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
double norm(const Point& a);
double distance(const Point& a, const Point& b);

/// A rigid transform x -> R x + t.
struct Frame {
  std::array<Point, 3> rows;  ///< rows of R; zeros in tables where a group does not exist
  Point origin;               ///< t
  static Frame identity() { return {{{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}}, {}}; }
  /// Returns the rotation by the angle whose sine and cosine are given about the x axis.
  static Frame turn(double sine, double cosine) { return {{{{1, 0, 0}, {0, cosine, -sine}, {0, sine, cosine}}}, {}}; }
  Point apply(const Point& point) const {
    return Point{dot(rows[0], point), dot(rows[1], point), dot(rows[2], point)} + origin;
  }
  Point rotate(const Point& vector) const { return {dot(rows[0], vector), dot(rows[1], vector), dot(rows[2], vector)}; }
  /// Returns the transform that applies `first`, then this one.
  Frame after(const Frame& first) const;
};

/// Returns the frame with the x axis along `x`, the y axis in the plane of `x` and `y`, and the origin `origin`
/// (Gram-Schmidt). `x` and `y` must not be parallel, otherwise the frame has values that are not finite.
Frame frame_of_axes(const Point& x, const Point& y, const Point& origin);

/// Returns the frame of a residue's backbone: origin CA, x axis to C, N in the plane of x and y (Jumper et al. 2021,
/// supplement, algorithm 21). Requirements: the same as frame_of_axes() with C - CA and N - CA.
Frame backbone_frame(const Point& n, const Point& ca, const Point& c);

/// Returns the place of CB that N, CA and C of an ideal residue give: -.58273431 a + .56802827 b - .54067466 c + CA
/// with b = CA - N, c = C - CA and a = b x c.
Point virtual_c_beta(const Point& n, const Point& ca, const Point& c);

/// Returns the torsion of four points about the axis b-c, in radians of (-pi, pi], positive clockwise along the axis
/// (IUPAC). Returns 0 if it is not defined.
double torsion(const Point& a, const Point& b, const Point& c, const Point& d);

}  // namespace colossal::protein
