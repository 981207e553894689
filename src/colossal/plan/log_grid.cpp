#include "colossal/plan/log_grid.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "colossal/base/error.h"

namespace colossal::plan {
namespace {

void to_logarithms(std::vector<double>& numbers) {
  for (double& number : numbers) {
    require(number > 0 && std::isfinite(number), "cluster", "a table must have positive numbers: got ", number,
            "; run `colossal plan --calibrate` again");
    number = std::log(number);
  }
}

/// Returns the index of the grid point below `x`, and the fraction of the way to the next one. Both are clamped.
std::pair<size_t, double> grid_cell_of(const std::vector<double>& axis, double x) {
  const size_t above = std::upper_bound(axis.begin(), axis.end(), x) - axis.begin();
  if (above == 0 || axis.size() == 1) return {0, 0};
  if (above == axis.size()) return {axis.size() - 2, 1};
  return {above - 1, (x - axis[above - 1]) / (axis[above] - axis[above - 1])};
}

}  // namespace

LogGrid::LogGrid(std::vector<std::vector<double>> axes, std::vector<double> values)
    : axes_(std::move(axes)), values_(std::move(values)) {
  size_t points = 1;
  for (auto& axis : axes_) {
    require(!axis.empty(), "cluster", "a table must have a number along each axis: got an empty list");
    to_logarithms(axis);
    for (size_t i = 1; i < axis.size(); ++i)
      require(axis[i - 1] < axis[i], "cluster", "the numbers of an axis must ascend: got ", std::exp(axis[i]),
              " after ", std::exp(axis[i - 1]));
    points *= axis.size();
  }
  require(values_.size() == points, "cluster", "a table must have a value for each point of its grid: got ",
          values_.size(), " values for ", points, " points");
  to_logarithms(values_);
}

double LogGrid::at(const std::vector<double>& point) const {
  double sum = 0;
  std::vector<std::pair<size_t, double>> cells;
  for (size_t i = 0; i < axes_.size(); ++i) cells.push_back(grid_cell_of(axes_[i], std::log(point.at(i))));
  for (size_t corner = 0; corner < size_t{1} << axes_.size(); ++corner) {
    double weight = 1;
    size_t index = 0;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const bool is_upper = corner >> i & 1;
      weight *= is_upper ? cells[i].second : 1 - cells[i].second;
      index = index * axes_[i].size() + std::min(cells[i].first + is_upper, axes_[i].size() - 1);
    }
    if (weight > 0) sum += weight * values_[index];
  }
  return std::exp(sum);
}

double LogGrid::largest() const { return std::exp(*std::max_element(values_.begin(), values_.end())); }

}  // namespace colossal::plan
