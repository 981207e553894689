// AdamW (Loshchilov and Hutter, arXiv:1711.05101) over shards.
#pragma once
#include "colossal/optim/optimizer.h"

namespace colossal::optim {

/// Two moments an element, in the dtype of the values. Decay is decoupled and falls on parameters with `decay` alone. No communication.
class AdamW : public Optimizer {
 public:
  AdamW(const OptimizerConfig& config, std::vector<memory::Shard>& shards);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  std::vector<StateTensor> state() override;

 private:
  struct Moments {
    at::Tensor first, second;  // as long as the shard
  };
  OptimizerConfig config_;
  std::vector<memory::Shard>& shards_;
  std::vector<Moments> moments_;
};

}  // namespace colossal::optim
