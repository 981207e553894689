#include <ATen/ATen.h>

#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

class Adam : public ElementwiseOptimizer {
 public:
  enum class Decay { Penalty, Decoupled };
  Adam(const OptimizerConfig& config, std::vector<memory::Shard>& shards, Decay decay)
      : ElementwiseOptimizer(config, shards, {"exp_avg", "exp_avg_sq"}), decay_(decay) {}

 private:
  void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) override;
  Decay decay_;
};

void Adam::update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) {
  ops::AdamStep s = adam_step(config(), step, learning_rate);
  (decay_ == Decay::Penalty ? s.penalty : s.weight_decay) = run.weight_decay;
  ops::adam_(run.update, states[0], states[1], s);
}

}  // namespace

ops::AdamStep adam_step(const OptimizerConfig& config, int64_t step, double learning_rate) {
  return {.learning_rate = learning_rate,
          .beta1 = config.betas[0],
          .beta2 = config.betas[1],
          .epsilon = config.epsilon,
          .step = step};
}

std::unique_ptr<Optimizer> make_adamw(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                      const LogicalTensors&) {
  return std::make_unique<Adam>(config, shards, Adam::Decay::Decoupled);
}

std::unique_ptr<Optimizer> make_adam(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                     const LogicalTensors&) {
  return std::make_unique<Adam>(config, shards, Adam::Decay::Penalty);
}

}  // namespace colossal::optim
