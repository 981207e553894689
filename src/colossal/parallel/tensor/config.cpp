#include "colossal/parallel/tensor/config.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/error.h"
#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {
namespace {

using Axes = std::vector<comm::Mesh::Axis>;

int64_t root(int64_t size, double exponent) { return std::llround(std::pow(static_cast<double>(size), exponent)); }

int64_t size_along(const Axes& axes, const std::vector<std::string>& names) {
  int64_t size = 1;
  for (const auto& axis : axes)
    if (std::find(names.begin(), names.end(), axis.name) != names.end()) size *= axis.size;
  return size;
}

/// Returns the split of `config` outside of layers (Layout::outside).
Split outside_of(const TensorConfig& config) {
  return with_mode(config, [&](auto mode) { return mode.outside(config); });
}

std::vector<TensorConfig> grids(int64_t ranks, bool deep) {
  std::vector<TensorConfig> configs;
  for (int64_t depth = deep ? 2 : 1; 4 * depth <= ranks && (deep || depth == 1); ++depth) {
    const int64_t side = root(ranks / depth, 0.5);
    if (depth * side * side == ranks)
      configs.push_back({.size = ranks, .mode = deep ? Mode2_5d::name : Mode2d::name, .depth = depth});
  }
  return configs;
}

}  // namespace

void TensorConfig::fields(Fields& f) {
  f.integer("size", size, "ranks",
            "number of ranks that share each matrix: any (1d), q^2 (2d), depth * q^2 (2.5d), l^3 (3d)", 1, 65536);
  f.choice("mode", mode, mode_names(), "partition of matrices; docs/how-to/choose-a-layout.md says when to use which");
  f.integer("depth", depth, "copies", "number of copies of the weights, each with a part of the batch (2.5d)", 1,
            65536);
  f.flag("keep_gathered", keep_gathered,
         "gathered blocks kept for backward: in 3d a third fewer messages, for l times their memory; in 1d with "
         "sequence (gathered inputs) a fifth fewer elements sent");
  f.flag("sequence", sequence,
         "sequence sharding of norms, dropout and residuals (1d), whose activations then take 1/size of the memory; "
         "data.sequence must be a multiple of size");
}

Axes Mode1d::axes(const TensorConfig& c) { return {{"tensor", static_cast<int>(c.size)}}; }
Split Mode1d::outside(const TensorConfig& c) {
  return {.sequence = c.sequence ? std::vector<std::string>{"tensor"} : std::vector<std::string>()};
}
std::vector<TensorConfig> Mode1d::formed_by(int64_t ranks) {
  const TensorConfig replicated{.size = ranks, .mode = name};
  if (ranks == 1) return {replicated};
  return {replicated,
          {.size = ranks, .mode = name, .sequence = true},
          {.size = ranks, .mode = name, .keep_gathered = true, .sequence = true}};
}

Axes Mode2d::axes(const TensorConfig& c) {
  const int64_t side = root(c.size, 0.5);
  require(side * side == c.size, name, "tensor.size must be q^2: got ", c.size, "; nearest: ", side * side);
  return {{"row", static_cast<int>(side)}, {"column", static_cast<int>(side)}};
}
Split Mode2d::outside(const TensorConfig&) { return {.batch = {"row"}, .columns = {"column"}}; }
std::vector<TensorConfig> Mode2d::formed_by(int64_t ranks) { return grids(ranks, false); }

Axes Mode2_5d::axes(const TensorConfig& c) {
  require(c.depth >= 1, name, "tensor.depth must be at least 1: got ", c.depth);
  const int64_t side = std::max<int64_t>(1, root(std::max<int64_t>(c.size / c.depth, 1), 0.5));
  std::string depths;  // depths that this size supports
  for (int64_t q = 2; q * q <= c.size; ++q)
    if (c.size % (q * q) == 0) depths += concat(depths.empty() ? ", or tensor.depth " : ", ", c.size / (q * q));
  require(c.depth * side * side == c.size, name, "tensor.size must be depth * q^2: got ", c.size, ", depth ", c.depth,
          "; nearest: ", c.depth * side * side, depths);
  return {{"depth", static_cast<int>(c.depth)}, {"row", static_cast<int>(side)}, {"column", static_cast<int>(side)}};
}
Split Mode2_5d::outside(const TensorConfig& c) {
  Split split = Mode2d::outside(c);
  if (c.depth > 1) split.batch.insert(split.batch.begin(), "depth");
  return split;
}
std::vector<TensorConfig> Mode2_5d::formed_by(int64_t ranks) { return grids(ranks, true); }

Axes Mode3d::axes(const TensorConfig& c) {
  const int64_t side = root(c.size, 1.0 / 3);
  require(side * side * side == c.size, name, "tensor.size must be l^3: got ", c.size,
          "; nearest: ", side * side * side);
  const int l = static_cast<int>(side);
  return {{"output", l}, {"input", l}, {"weight", l}};
}
Split Mode3d::outside(const TensorConfig&) { return {.batch = {"weight", "input"}, .columns = {"output"}}; }
std::vector<TensorConfig> Mode3d::formed_by(int64_t ranks) {
  const int64_t side = root(ranks, 1.0 / 3);
  if (side < 2 || side * side * side != ranks) return {};
  return {{.size = ranks, .mode = name}, {.size = ranks, .mode = name, .keep_gathered = true}};
}

std::vector<std::string> mode_names() {
  std::vector<std::string> names;
  for_each_mode([&](auto mode) { names.emplace_back(mode.name); });
  return names;
}

std::vector<comm::Mesh::Axis> tensor_axes(const TensorConfig& config) {
  require(config.mode == Mode2_5d::name || config.depth == 1, "parallel", "tensor.depth needs mode 2.5d: got depth ",
          config.depth, " with mode ", config.mode);
  require(config.mode == Mode1d::name || !config.sequence, "parallel", "tensor.sequence needs mode 1d: mode ",
          config.mode, " splits hidden states already; set tensor.sequence = false");
  return with_mode(config, [&](auto mode) { return mode.axes(config); });
}

int64_t batch_parts(const TensorConfig& config) { return size_along(tensor_axes(config), outside_of(config).batch); }

int64_t sequence_parts(const TensorConfig& config) {
  return size_along(tensor_axes(config), outside_of(config).sequence);
}

int64_t head_parts(const TensorConfig& config) {
  if (config.mode == Mode1d::name) return config.size;
  return size_along(tensor_axes(config), outside_of(config).columns);  // heads are split like hidden features
}

void check_sizes(const TensorConfig& config, int64_t hidden, int64_t batch, int64_t sequence) {
  const auto check = [&](int64_t size, int64_t parts, const char* what, const char* who) {
    const int64_t nearest = std::max<int64_t>(1, (size + parts / 2) / parts) * parts;
    require(size % parts == 0, config.mode.c_str(), what, " must be divisible by the ", parts, " ranks that split ",
            who, ": got ", size, "; nearest: ", nearest);
  };
  check(hidden, size_along(tensor_axes(config), outside_of(config).columns), "hidden", "features");
  check(batch, batch_parts(config), "the rows of a batch", "them");
  check(sequence, sequence_parts(config), "the tokens of a row (data.sequence)", "them");
}

}  // namespace colossal::parallel
