#include "colossal/parallel/tensor/layer_cost.h"

#include <cmath>

#include "colossal/base/error.h"
#include "colossal/parallel/tensor/modes.h"

namespace colossal::parallel {
namespace {

constexpr double kBytes = 4;  // bytes per element

/// Numbers of elements, summed over the four linear layers: inputs, weights, outputs.
struct Terms {
  explicit Terms(const LayerSizes& s)
      : state(static_cast<double>(s.batch * s.sequence * s.hidden)),
        x(7 * state),
        weight(12 * std::pow(static_cast<double>(s.hidden), 2)),
        y(9 * state) {}
  double state, x, weight, y;  // state: b * s * h
};

}  // namespace

LayerCost Mode1d::cost(const TensorConfig& c, const LayerSizes& sizes) {
  const Terms t(sizes);
  const auto p = static_cast<double>(c.size);
  const double each_way = 4 * (p - 1) / p * t.state;
  // Every rank keeps the whole input of an expand, unless it is gathered for y and again for dW.
  const bool again = c.sequence && !c.keep_gathered;
  return {.forward = each_way,
          .backward = each_way * (again ? 1.5 : 1),
          .calls = p == 1       ? 0
                   : c.sequence ? (again ? 10.0 : 8.0)
                                : 4.0,
          .parameter_bytes = kBytes * t.weight / p,
          .activation_bytes = kBytes * ((again ? 2 / p : 2) + 5 / p) * t.state};
}

// 2d is 2.5d with depth 1.
LayerCost Mode2d::cost(const TensorConfig& c, const LayerSizes& sizes) { return Mode2_5d::cost(c, sizes); }

LayerCost Mode2_5d::cost(const TensorConfig& c, const LayerSizes& sizes) {
  const Terms t(sizes);
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

LayerCost Mode3d::cost(const TensorConfig& c, const LayerSizes& sizes) {
  const Terms t(sizes);
  const double l = std::round(std::cbrt(static_cast<double>(c.size))), share = 1 / (l * l * l);
  const double each_way = (l - 1) * (t.x + t.weight + t.y) * share, again = (l - 1) * (t.x + t.weight) * share;
  return {.forward = each_way,
          .backward = each_way + (c.keep_gathered ? 0 : again),
          .calls = c.keep_gathered ? 24.0 : 32.0,
          .parameter_bytes = kBytes * t.weight * share,
          .activation_bytes = kBytes * share * (c.keep_gathered ? l * (t.x + t.weight) : t.x)};
}

void check_layer(const TensorConfig& config, const LayerSizes& sizes) {
  require(sizes.heads > 0 && sizes.hidden % sizes.heads == 0, "model", "hidden must be divisible by heads: got hidden ",
          sizes.hidden, ", heads ", sizes.heads);
  check_sizes(config, sizes.hidden, sizes.batch, sizes.sequence);
}

std::vector<TensorConfig> tensor_modes(int64_t ranks) {
  std::vector<TensorConfig> configs;
  for_each_mode([&](auto mode) {
    for (const TensorConfig& config : mode.formed_by(ranks)) configs.push_back(config);
  });
  return configs;
}

std::string mode_name(const TensorConfig& c) {
  return c.mode + (c.depth > 1 ? concat(" depth ", c.depth) : "") + (c.sequence ? " sequence" : "") +
         (c.keep_gathered ? " keep_gathered" : "");
}

LayerCost published_cost(const TensorConfig& config, const LayerSizes& sizes) {
  tensor_axes(config);  // refuses sizes that the mode does not support
  return with_mode(config, [&](auto mode) { return mode.cost(config, sizes); });
}

}  // namespace colossal::parallel
