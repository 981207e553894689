// Estimates the seconds and the memory of layouts by formulas, in about a microsecond each. A search records the
// layouts in this order.
//
//   const predict::LayoutPrices prices(space, {.shape = shape}, cluster);
//   const predict::LayoutPrice price = prices.of(layout);
#pragma once
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "colossal/plan/cluster.h"
#include "colossal/predict/layouts.h"
#include "colossal/train/run_models.h"

namespace colossal::predict {

struct LayoutPrice {
  double seconds = 0;
  double tier_seconds = 0;      ///< part of `seconds`: copies to and from tiers
  double fixed_bytes = 0;       ///< parameters, gradients and optimizer states on the device, at least
  double activation_bytes = 0;  ///< activations on the device, about; mostly too few
  double bound_bytes = 0;       ///< certainly needed on the device: fixed_bytes and the inputs of the blocks
};

/// The formulas: operations of models::costs_of at the rate of a typical product, the published formulas of tensor and
/// sequence parallelism (parallel/tensor/layer_cost.h, parallel/sequence/attention_cost.h), reductions of gradients,
/// the bubble of the pipeline, and the update. bound_bytes counts parameters, gradients, states and the inputs of the
/// blocks of one micro-batch; tiers leave only these inputs on the device. A layout whose bound exceeds the memory
/// cannot fit.
/// Not thread-safe: the costs of an axis are kept for the next layout.
class LayoutPrices {
 public:
  /// All must outlive this object. Errors ("model"): those of train::memory_needs() for one rank.
  LayoutPrices(const LayoutSpace& space, const train::RunModels& models, const plan::Cluster& cluster);

  /// Errors ("cluster"): a group over several nodes on a cluster without a network.
  LayoutPrice of(const Layout& layout) const;

 private:
  struct Sizes;
  struct AxisCost {
    double bytes = 0, calls = 0;  // that a rank sends in a layer, forward and backward
  };
  double compute_seconds(const Layout& layout, const Sizes& sizes) const;
  double axis_seconds(const Layout& layout, const Sizes& sizes) const;
  double busy_seconds(const Layout& layout, const Sizes& sizes) const;
  double tier_seconds(double parts, double sharers) const;
  double reduction_seconds(const Layout& layout, const Sizes& sizes) const;
  AxisCost tensor_cost(const Layout& layout, const Sizes& sizes) const;
  AxisCost sequence_cost(const Layout& layout, const Sizes& sizes) const;
  double group_seconds(Collective collective, double bytes, double calls, int64_t ranks, int64_t stride) const;

  const LayoutSpace& space_;
  const models::ModelShape shape_;
  const plan::Cluster& cluster_;
  plan::NumberType type_;
  /// Bytes of the whole models. parameters_: those that train; states_: with master weights
  double frozen_ = 0, parameters_ = 0, gradients_ = 0, states_ = 0;
  double operations_ = 0;                                                 // of a sample, forward and backward
  mutable std::map<std::pair<int32_t, int64_t>, AxisCost> tensor_costs_;  // by candidate and rows
  mutable std::map<std::tuple<int32_t, int64_t, int64_t>, AxisCost> sequence_costs_;  // and heads of a rank
  mutable std::map<std::tuple<int64_t, int64_t, int64_t>, double> product_rates_;     // seconds an operation
  mutable Layout last_;                                                               // of busy_seconds()
  mutable std::vector<double> last_busy_;  // by recomputation; -1 = not known
};

}  // namespace colossal::predict
