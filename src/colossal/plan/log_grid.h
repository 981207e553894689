// Interpolation of measured rates over sizes that span orders of magnitude.
//
//   const plan::LogGrid grid({{1, 2}, {256, 1024, 4096}}, rates);   // threads, then rows: 6 rates, rows fastest
//   grid.at({1, 512});                                              // between the rates of 256 and 1024 rows
#pragma once
#include <vector>

namespace colossal::plan {

/// Positive values on a grid of positive coordinates. Between grid points the logarithm of the value is linear in the
/// logarithm of each coordinate. Outside the grid the value is that of the nearest border.
class LogGrid {
 public:
  /// `axes` has the coordinates of each axis, ascending. `values` has one entry for each grid point, the last axis
  /// fastest. Errors ("cluster"): an axis is empty or not ascending, a number is not positive and finite, or the number
  /// of values is not the product of the sizes of the axes.
  LogGrid(std::vector<std::vector<double>> axes, std::vector<double> values);
  /// Returns the value at `point`, which has a positive coordinate for each axis. Cost: 2^axes reads.
  double at(const std::vector<double>& point) const;
  double largest() const;  ///< the largest value of the grid

 private:
  std::vector<std::vector<double>> axes_;  // logarithms
  std::vector<double> values_;             // logarithms
};

}  // namespace colossal::plan
