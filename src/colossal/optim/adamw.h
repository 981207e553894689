// AdamW (Loshchilov and Hutter, arXiv:1711.05101) over flat buckets.
#pragma once
#include "colossal/optim/optimizer.h"

namespace colossal::optim {

/// Two moments a parameter, in its dtype. Decay is decoupled and falls on parameters with `decay` alone.
class AdamW : public Optimizer {
 public:
  AdamW(const OptimizerConfig& config, nn::FlatParameters& flat);
  void step(int64_t step, double learning_rate, double gradient_scale) override;
  std::vector<StateTensor> state() override;

 private:
  struct Moments {
    at::Tensor first, second;  // as long as the bucket
  };
  OptimizerConfig config_;
  nn::FlatParameters& flat_;
  std::vector<Moments> moments_;
};

}  // namespace colossal::optim
