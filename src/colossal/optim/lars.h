// LARS (You et al., arXiv:1708.03888) over shards.
#pragma once
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// The update: l = trust |w| / (|g| + weight_decay |w|);  b = momentum b + rate l (g + weight_decay w);  w -= b
///
/// Norms are of logical tensors, so the step is the same under every layout. l is 1 for vectors (biases, norms) and if
/// a norm is 0. One state per element, none with momentum = 0.
/// Passes: the norms of w and g (8 bytes per element for fp32), the step (20, or 12 with momentum = 0). On accelerators
///         the rate stays on the device, and l (g + weight_decay w) is computed before the step, in slices of 2^22
///         elements. For bf16 values it is rounded to bf16.
/// Communication: one all_reduce of 2 * tensors doubles per step among all ranks.
class Lars : public TensorwiseOptimizer {
 public:
  Lars(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical);
  void step(int64_t step, double learning_rate, double gradient_scale) override;

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  ShardStates states_;
};

}  // namespace colossal::optim
