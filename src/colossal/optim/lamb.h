// LAMB (You et al., arXiv:1904.00962, algorithm 2) over shards.
#pragma once
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// The update, with both moments corrected for their bias:
///
///   r = m^ / (sqrt(v^) + epsilon);  u = r + weight_decay w;  w -= rate * |w| / |u| * u
///
/// Norms are of logical tensors, so the step is the same under every layout. The ratio |w| / |u| is 1 if a norm is 0.
/// weight_decay applies only to parameters with `decay`. Two moments per element; u is stored in Resident::directions.
/// Passes: the moments and u (28 bytes per element for fp32), the norms of w and u (8), the step (12).
/// Communication: one all_reduce of 2 * tensors doubles per step among all ranks.
class Lamb : public TensorwiseOptimizer {
 public:
  Lamb(const OptimizerConfig& config, std::vector<memory::Shard>& shards, const LogicalTensors& logical)
      : TensorwiseOptimizer(config, shards, logical), states_(shards, {"exp_avg", "exp_avg_sq"}) {}
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  Takes takes() const override { return {.directions = true}; }

 private:
  void add_to(std::vector<StateTensor>& state) const override;

  ShardStates states_;
};

}  // namespace colossal::optim
