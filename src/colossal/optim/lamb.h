// LAMB (You et al., arXiv:1904.00962, algorithm 2) over shards.
#pragma once
#include "colossal/optim/tensorwise.h"

namespace colossal::optim {

/// r = m^ / (sqrt(v^) + epsilon), both moments corrected for their bias;  u = r + weight_decay w;  w -= rate * |w| /
/// |u| * u
///
/// Norms are of logical tensors, so the step is the same under every layout; the ratio is 1 where a norm is 0.
/// weight_decay falls on parameters with `decay` alone. Two moments an element; u lies in
/// Resident::directions.
/// Passes: the moments and u (28 bytes an element of fp32), the norms of w and u (8), the step (12).
/// Communication: one all_reduce of 2 * tensors doubles a step among all ranks.
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
