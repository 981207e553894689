#include <ATen/ATen.h>

#include "colossal/base/error.h"
#include "colossal/optim/rules.h"

namespace colossal::optim {
namespace {

class Sgd : public ElementwiseOptimizer {
 public:
  Sgd(const OptimizerConfig& config, std::vector<memory::Shard>& shards);

 private:
  void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) override;
};

Sgd::Sgd(const OptimizerConfig& config, std::vector<memory::Shard>& shards)
    : ElementwiseOptimizer(config, shards, momentum_states(config)) {
  require(config.momentum > 0 || !config.nesterov, "optimizer", "nesterov needs a momentum above 0: got ",
          config.momentum, "; set momentum = 0.9");
}

void Sgd::update(const Run& run, const std::vector<at::Tensor>& states, int64_t, double learning_rate) {
  ops::sgd_(run.update, states.empty() ? at::Tensor() : states[0],
            {.learning_rate = learning_rate,
             .momentum = config().momentum,
             .weight_decay = run.weight_decay,
             .nesterov = config().nesterov});
}

}  // namespace

std::vector<std::string> momentum_states(const OptimizerConfig& config) {
  if (config.momentum == 0) return {};
  return {"momentum"};
}

std::unique_ptr<Optimizer> make_sgd(const OptimizerConfig& config, std::vector<memory::Shard>& shards,
                                    const LogicalTensors&) {
  return std::make_unique<Sgd>(config, shards);
}

}  // namespace colossal::optim
