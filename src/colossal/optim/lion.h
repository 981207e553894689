// Lion (Chen et al., arXiv:2302.06675) over shards.
#pragma once
#include "colossal/optim/elementwise.h"

namespace colossal::optim {

/// One state per element. The size of a step is the rate, independent of the gradient's magnitude. The paper therefore
/// recommends a rate 3 to 10 times smaller than AdamW's, and a weight_decay larger by the same factor. Decay is
/// decoupled, times the parameter's `decay`.
class Lion : public ElementwiseOptimizer {
 public:
  Lion(const OptimizerConfig& config, std::vector<memory::Shard>& shards)
      : ElementwiseOptimizer(config, shards, {"exp_avg"}) {}

 private:
  void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) override;
};

}  // namespace colossal::optim
