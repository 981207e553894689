// Adam (Kingma and Ba, arXiv:1412.6980) and AdamW (Loshchilov and Hutter, arXiv:1711.05101) over shards.
#pragma once
#include "colossal/optim/elementwise.h"

namespace colossal::optim {

/// Two moments per element, in the dtype of the values. weight_decay times the parameter's `decay` is a penalty in the
/// gradient (Adam), or decoupled (AdamW). For CPU tensors the update runs on the CPU, regardless of where the model
/// computes.
class Adam : public ElementwiseOptimizer {
 public:
  enum class Decay { Penalty, Decoupled };
  Adam(const OptimizerConfig& config, std::vector<memory::Shard>& shards, Decay decay)
      : ElementwiseOptimizer(config, shards, {"exp_avg", "exp_avg_sq"}), decay_(decay) {}

 private:
  void update(const Run& run, const std::vector<at::Tensor>& states, int64_t step, double learning_rate) override;
  Decay decay_;
};

/// Returns the step of ops::adam_ with the betas and epsilon of `config`, without weight decay.
ops::AdamStep adam_step(const OptimizerConfig& config, int64_t step, double learning_rate);

}  // namespace colossal::optim
