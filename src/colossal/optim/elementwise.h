// The common base of rules that update every element independently.
#pragma once
#include "colossal/optim/shard_states.h"

namespace colossal::optim {

/// A rule whose step is one fused pass over each shard. No communication.
class ElementwiseOptimizer : public Optimizer {
 public:
  void step(int64_t step, double learning_rate, double gradient_scale) final;
  std::vector<StateTensor> state() final;
  bool takes_shards_on(at::Device) const final { return true; }

 protected:
  ElementwiseOptimizer(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                       std::vector<std::string> states)
      : config_(config), shards_(shards), states_(shards, std::move(states)) {}
  const OptimizerConfig& config() const { return config_; }

 private:
  /// Updates one run. `states` are the run's parts of the states named in the constructor.
  virtual void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) = 0;

  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  ShardStates states_;
};

}  // namespace colossal::optim
