#include "colossal/parallel/tensor/config.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

using Axes = std::vector<comm::Mesh::Axis>;

int64_t root(int64_t size, double exponent) { return std::llround(std::pow(static_cast<double>(size), exponent)); }

Axes axes_1d(const TensorConfig& c) { return {{"tensor", static_cast<int>(c.size)}}; }

Axes axes_2d(const TensorConfig& c) {
  const int64_t side = root(c.size, 0.5);
  require(side * side == c.size, "2d", "tensor.size must be q^2: got ", c.size, "; nearest: ", side * side);
  return {{"row", static_cast<int>(side)}, {"column", static_cast<int>(side)}};
}

Axes axes_2_5d(const TensorConfig& c) {
  require(c.depth >= 1, "2.5d", "tensor.depth must be at least 1: got ", c.depth);
  const int64_t side = std::max<int64_t>(1, root(std::max<int64_t>(c.size / c.depth, 1), 0.5));
  std::string depths;  // with which this size would do
  for (int64_t q = 2; q * q <= c.size; ++q)
    if (c.size % (q * q) == 0) depths += concat(depths.empty() ? ", or tensor.depth " : ", ", c.size / (q * q));
  require(c.depth * side * side == c.size, "2.5d", "tensor.size must be depth * q^2: got ", c.size, ", depth ", c.depth,
          "; nearest: ", c.depth * side * side, depths);
  return {{"depth", static_cast<int>(c.depth)}, {"row", static_cast<int>(side)}, {"column", static_cast<int>(side)}};
}

Axes axes_3d(const TensorConfig& c) {
  const int64_t side = root(c.size, 1.0 / 3);
  require(side * side * side == c.size, "3d", "tensor.size must be l^3: got ", c.size,
          "; nearest: ", side * side * side);
  const int l = static_cast<int>(side);
  return {{"output", l}, {"input", l}, {"weight", l}};
}

struct Mode {
  const char* name;
  std::vector<std::string> rows, columns;  // that split a batch and its features: Layout::outside
  Axes (*axes)(const TensorConfig&);
};

const Mode kModes[] = {
    {"1d", {}, {}, axes_1d},
    {"2d", {"row"}, {"column"}, axes_2d},
    {"2.5d", {"depth", "row"}, {"column"}, axes_2_5d},
    {"3d", {"weight", "input"}, {"output"}, axes_3d},
};

const Mode& mode_of(const TensorConfig& config) {
  for (const Mode& mode : kModes)
    if (config.mode == mode.name) return mode;
  throw Error("parallel", concat("tensor.mode must be 1d, 2d, 2.5d or 3d: got ", config.mode));
}

int64_t size_along(const Axes& axes, const std::vector<std::string>& names) {
  int64_t size = 1;
  for (const auto& axis : axes)
    if (std::find(names.begin(), names.end(), axis.name) != names.end()) size *= axis.size;
  return size;
}

}  // namespace

void TensorConfig::fields(Fields& f) {
  f.integer("size", size, "ranks", "ranks that share each matrix: any (1d), q^2 (2d), depth * q^2 (2.5d), l^3 (3d)", 1,
            65536);
  f.choice("mode", mode, {"1d", "2d", "2.5d", "3d"},
           "how matrices are cut: docs/tensor-parallel.md says when to take which");
  f.integer("depth", depth, "layers", "2.5d: copies of the weights, each with its part of the batch", 1, 65536);
  f.flag("keep_gathered", keep_gathered,
         "3d: keep gathered blocks for backward: a third fewer messages, l times the memory for them");
}

std::vector<comm::Mesh::Axis> tensor_axes(const TensorConfig& config) {
  require(config.mode == "2.5d" || config.depth == 1, "parallel", "tensor.depth belongs to mode 2.5d: got depth ",
          config.depth, " with mode ", config.mode);
  return mode_of(config).axes(config);
}

int64_t batch_parts(const TensorConfig& config) { return size_along(tensor_axes(config), mode_of(config).rows); }

void check_sizes(const TensorConfig& config, int64_t hidden, int64_t batch) {
  const int64_t columns = size_along(tensor_axes(config), mode_of(config).columns), rows = batch_parts(config);
  require(hidden % columns == 0, mode_of(config).name, "hidden must divide by the ", columns,
          " ranks that split features: got ", hidden,
          "; nearest: ", std::max<int64_t>(1, (hidden + columns / 2) / columns) * columns);
  require(batch % rows == 0, mode_of(config).name, "the rows of a batch must divide by the ", rows,
          " ranks that split them: got ", batch, "; nearest: ", std::max<int64_t>(1, (batch + rows / 2) / rows) * rows);
}

}  // namespace colossal::parallel
