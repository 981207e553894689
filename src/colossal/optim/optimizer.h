// Optimizers over flat buckets of parameters, and the registry of their names.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/nn/flat_parameters.h"

namespace colossal::optim {

/// [optimizer]
struct OptimizerConfig {
  std::string name = "adamw";
  double learning_rate = 1e-3;
  std::vector<double> betas{0.9, 0.95};
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  std::string schedule = "cosine";
  int64_t warmup_steps = 10;
  double final_learning_rate = 0.1;
  void fields(Fields& f);
};

/// One tensor of an optimizer's state for one parameter, a view in that parameter's local shape: it is saved and resharded with the
/// parameter's own spec.
struct StateTensor {
  std::string name;  ///< "exp_avg.blocks.0.mlp.up.weight"
  at::Tensor value;
  const nn::Parameter* parameter;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update of all parameters from their gradients times `gradient_scale`. `step` counts from 1.
  virtual void step(int64_t step, double learning_rate, double gradient_scale) = 0;
  /// Everything that must be saved, beside the step.
  virtual std::vector<StateTensor> state() = 0;
};

/// Errors ("optimizer"): betas that are not two numbers in [0, 1).
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, nn::FlatParameters& flat);

}  // namespace colossal::optim
