#include <ATen/ATen.h>

#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

class Lion : public ElementwiseOptimizer {
 public:
  Lion(const OptimizerConfig& config, std::vector<memory::Shard>& shards)
      : ElementwiseOptimizer(config, shards, {"exp_avg"}) {}

 private:
  void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) override;
};

void Lion::update(const Run& run, const std::vector<at::Tensor>& states, int64_t, double learning_rate) {
  ops::lion_(run.update, states[0],
             {.learning_rate = learning_rate,
              .beta1 = config().betas[0],
              .beta2 = config().betas[1],
              .weight_decay = run.weight_decay});
}

}  // namespace

std::unique_ptr<Optimizer> make_lion(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                     const LogicalTensors&) {
  return std::make_unique<Lion>(config, shards);
}

}  // namespace colossal::optim
