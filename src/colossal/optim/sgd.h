// Stochastic gradient descent over shards, with Polyak or Nesterov momentum.
#pragma once
#include "colossal/optim/elementwise.h"

namespace colossal::optim {

/// One state per element, none with momentum = 0. weight_decay times the parameter's `decay` is a penalty in the
/// gradient. The update equals torch.optim.SGD's.
class Sgd : public ElementwiseOptimizer {
 public:
  /// Errors ("optimizer"): nesterov without momentum.
  Sgd(const OptimizerConfig& config, std::vector<memory::Shard>& shards);

 private:
  void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) override;
};

/// Returns the names of the states that config.momentum needs: one, or none if it is 0.
std::vector<std::string> momentum_states(const OptimizerConfig& config);

}  // namespace colossal::optim
