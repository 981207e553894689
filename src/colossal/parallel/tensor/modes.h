// The modes of tensor parallelism, each listed once, as a type with everything in which it differs. Functions without
// LibTorch are in config.cpp and layer_cost.cpp, the layout in the file with the mode's name.
//
//   const Layout layout = with_mode(config, [&](auto mode) { return mode.layout(mesh, config); });
#pragma once
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/comm/mesh.h"
#include "colossal/parallel/tensor/config.h"

namespace colossal::parallel {

struct Layout;
struct LayerCost;
struct LayerSizes;

/// Megatron-LM, arXiv:1909.08053, and its sequence form, arXiv:2205.05198. Any number of ranks along the axis "tensor".
struct Mode1d {
  static constexpr const char* name = "1d";
  /// Returns the axes of a mesh, outermost first. Errors: a size that the mode does not support, with the nearest
  /// supported one.
  static std::vector<comm::Mesh::Axis> axes(const TensorConfig&);
  /// Returns the split of hidden states at the borders of blocks.
  static Split outside(const TensorConfig&);
  /// Returns every configuration of this mode that `ranks` ranks can form.
  static std::vector<TensorConfig> formed_by(int64_t ranks);
  /// Returns the cost by the published formulas (layer_cost.h).
  static LayerCost cost(const TensorConfig&, const LayerSizes&);
  static Layout layout(comm::Mesh&, const TensorConfig&);
};

/// SUMMA on a grid of q^2 ranks, axes "row" and "column": Optimus, arXiv:2104.05343.
struct Mode2d {
  static constexpr const char* name = "2d";
  static std::vector<comm::Mesh::Axis> axes(const TensorConfig&);
  static Split outside(const TensorConfig&);
  static std::vector<TensorConfig> formed_by(int64_t ranks);
  static LayerCost cost(const TensorConfig&, const LayerSizes&);
  static Layout layout(comm::Mesh&, const TensorConfig&);
};

/// `depth` such grids, axes "depth", "row" and "column": Tesseract, arXiv:2105.14500.
struct Mode2_5d {
  static constexpr const char* name = "2.5d";
  static std::vector<comm::Mesh::Axis> axes(const TensorConfig&);
  static Split outside(const TensorConfig&);
  static std::vector<TensorConfig> formed_by(int64_t ranks);
  static LayerCost cost(const TensorConfig&, const LayerSizes&);
  static Layout layout(comm::Mesh&, const TensorConfig&);
};

/// A cube of l^3 ranks, axes "output", "input" and "weight": arXiv:2105.14450.
struct Mode3d {
  static constexpr const char* name = "3d";
  static std::vector<comm::Mesh::Axis> axes(const TensorConfig&);
  static Split outside(const TensorConfig&);
  static std::vector<TensorConfig> formed_by(int64_t ranks);
  static LayerCost cost(const TensorConfig&, const LayerSizes&);
  static Layout layout(comm::Mesh&, const TensorConfig&);
};

using Modes = std::tuple<Mode1d, Mode2d, Mode2_5d, Mode3d>;

/// Calls visit(mode) for each mode, in the order of the list.
template <class Visit>
void for_each_mode(const Visit& visit) {
  std::apply([&](auto... mode) { (visit(mode), ...); }, Modes());
}

/// Returns visit(mode) for the mode that `config` names. Errors ("parallel"): no such mode.
template <class Visit>
auto with_mode(const TensorConfig& config, const Visit& visit) {
  std::vector<decltype(visit(Mode1d()))> result;
  for_each_mode([&](auto mode) {
    if (config.mode == mode.name) result.push_back(visit(mode));
  });
  require(!result.empty(), "parallel", "tensor.mode must be one of ", join(mode_names()), ": got ", config.mode);
  return std::move(result.front());
}

}  // namespace colossal::parallel
