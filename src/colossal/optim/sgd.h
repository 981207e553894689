// Stochastic gradient descent over shards, with momentum (Polyak) or Nesterov's.
#pragma once
#include "colossal/optim/elementwise.h"

namespace colossal::optim {

/// One state an element, none with momentum = 0. weight_decay is a penalty in the gradient, times the parameters'
/// `decay`. As torch.optim.SGD.
class Sgd : public ElementwiseOptimizer {
 public:
  /// Errors ("optimizer"): nesterov without momentum.
  Sgd(const OptimizerConfig& config, std::vector<memory::Shard>& shards);

 private:
  void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) override;
};

/// The state that config.momentum needs: one, or none at all.
std::vector<std::string> momentum_states(const OptimizerConfig& config);

}  // namespace colossal::optim
