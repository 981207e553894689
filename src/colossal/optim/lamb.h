// LAMB (You et al., arXiv:1904.00962, algorithm 2) over shards.
#pragma once
#include "colossal/optim/logical_tensors.h"
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

/// r = m^ / (sqrt(v^) + epsilon), both moments corrected for their bias;  u = r + weight_decay w;  w -= rate * |w| / |u| * u
///
/// Norms are of logical tensors, so the step is the same under every layout; the ratio is 1 where a norm is 0. weight_decay falls on parameters with
/// `decay` alone. Two moments an element, and while a step runs one value more.
/// Communication: one all_reduce of 2 * tensors doubles a step among all ranks.
class Lamb : public Optimizer {
 public:
  Lamb(const OptimizerConfig& config, std::vector<memory::Shard>& shards, comm::Mesh& mesh)
      : config_(config), shards_(shards), tensors_(shards, mesh), states_(shards, {"exp_avg", "exp_avg_sq"}) {}
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  std::vector<StateTensor> state() override;

 private:
  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  LogicalTensors tensors_;
  ShardStates states_;
};

}  // namespace colossal::optim
