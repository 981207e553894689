#include "colossal/parallel/tensor/layer_cost.h"

#include <cmath>

#include "colossal/base/error.h"

namespace colossal::parallel {
namespace {

constexpr double kBytes = 4;  // of an element

/// Elements, summed over the four linear layers: inputs, weights, outputs.
struct Terms {
  explicit Terms(const LayerSizes& s)
      : state(static_cast<double>(s.batch * s.sequence * s.hidden)),
        x(7 * state),
        weight(12 * std::pow(static_cast<double>(s.hidden), 2)),
        y(9 * state) {}
  double state, x, weight, y;  // state: b * s * h
};

LayerCost cost_1d(const TensorConfig& c, const Terms& t) {
  const auto p = static_cast<double>(c.size);
  const double each_way = 4 * (p - 1) / p * t.state;
  return {.forward = each_way,
          .backward = each_way,
          .calls = p > 1 ? 4.0 : 0,
          .parameter_bytes = kBytes * t.weight / p,
          .activation_bytes = kBytes * (2 + 5 / p) * t.state};  // an expand's input is whole on every rank
}

// 2D is depth 1.
LayerCost cost_2_5d(const TensorConfig& c, const Terms& t) {
  const auto d = static_cast<double>(c.depth);
  const double q = std::round(std::sqrt(static_cast<double>(c.size) / d));
  const double product = (q - 1) * (t.x / d + t.weight) / (q * q);
  const double sum_over_depth = 2 * (d - 1) / d * t.weight / (q * q);
  return {.forward = product,
          .backward = 2 * product + sum_over_depth,
          .calls = 24 * q + (d > 1 ? 1 : 0),
          .parameter_bytes = kBytes * t.weight / (q * q),
          .activation_bytes = kBytes * t.x / (d * q * q)};
}

LayerCost cost_3d(const TensorConfig& c, const Terms& t) {
  const double l = std::round(std::cbrt(static_cast<double>(c.size))), share = 1 / (l * l * l);
  const double each_way = (l - 1) * (t.x + t.weight + t.y) * share, again = (l - 1) * (t.x + t.weight) * share;
  return {.forward = each_way,
          .backward = each_way + (c.keep_gathered ? 0 : again),
          .calls = c.keep_gathered ? 24.0 : 32.0,
          .parameter_bytes = kBytes * t.weight * share,
          .activation_bytes = kBytes * share * (c.keep_gathered ? l * (t.x + t.weight) : t.x)};
}

struct Formula {
  const char* mode;
  LayerCost (*cost)(const TensorConfig&, const Terms&);
};

const Formula kFormulas[] = {{"1d", cost_1d}, {"2d", cost_2_5d}, {"2.5d", cost_2_5d}, {"3d", cost_3d}};

}  // namespace

void check_layer(const TensorConfig& config, const LayerSizes& sizes) {
  require(sizes.heads > 0 && sizes.hidden % sizes.heads == 0, "model", "hidden must divide by heads: got hidden ",
          sizes.hidden, ", heads ", sizes.heads);
  check_sizes(config, sizes.hidden, sizes.batch);
}

std::vector<TensorConfig> tensor_modes(int64_t ranks) {
  std::vector<TensorConfig> modes{{.size = ranks, .mode = "1d"}};
  for (int64_t depth = 1; 4 * depth <= ranks; ++depth) {
    const int64_t side = std::llround(std::sqrt(static_cast<double>(ranks) / static_cast<double>(depth)));
    if (depth * side * side == ranks)
      modes.push_back({.size = ranks, .mode = depth == 1 ? "2d" : "2.5d", .depth = depth});
  }
  const int64_t side = std::llround(std::cbrt(static_cast<double>(ranks)));
  if (side > 1 && side * side * side == ranks) {
    for (const bool keep : {false, true}) modes.push_back({.size = ranks, .mode = "3d", .keep_gathered = keep});
  }
  return modes;
}

std::string mode_name(const TensorConfig& c) {
  return c.mode + (c.depth > 1 ? concat(" depth ", c.depth) : "") + (c.keep_gathered ? " keep_gathered" : "");
}

LayerCost published_cost(const TensorConfig& config, const LayerSizes& sizes) {
  tensor_axes(config);  // refuses sizes that the mode cannot be made of
  for (const Formula& formula : kFormulas)
    if (config.mode == formula.mode) return formula.cost(config, Terms(sizes));
  throw Error("parallel", concat("no published cost of tensor.mode ", config.mode));
}

}  // namespace colossal::parallel
