// The section [optimizer] of a config: the update rule and its parameters.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/optim/learning_rate.h"
#include "colossal/optim/parameter_groups.h"

namespace colossal::optim {

/// The keys of [optimizer]. A rule refuses the keys that it does not use. `colossal help config` says more.
struct OptimizerConfig {
  std::string name = "adamw";                  ///< update rule, one of rule_names()
  double learning_rate = 1e-3;                 ///< peak rate
  std::vector<double> betas;                   ///< decay rates of the moments; empty = the defaults of the rule
  double epsilon = 1e-8;                       ///< adam*, lamb, galore, muon: added to the root of the second moment
  double weight_decay = 0.1;                   ///< decay of matrices and embeddings, not of norms and biases
  double momentum = 0.9;                       ///< sgd, lars: fraction of the previous direction that is kept
  bool nesterov = false;                       ///< sgd: use Nesterov momentum
  double trust = 1e-3;                         ///< lars: size of a step as a fraction of the tensor's norm
  int64_t rank = 128;                          ///< galore: rank of the gradient projection
  int64_t update_every = 200;                  ///< galore: steps between computations of the projection
  double projection_scale = 0.25;              ///< galore: scale factor of projected steps
  std::string step_scale = "adamw";            ///< muon: size of a matrix's step, "adamw" or "spectral"
  bool stochastic_rounding = false;            ///< stochastic rounding of bf16 parameters without fp32 master weights
  ScheduleConfig schedule;                     ///< learning rates after the warm-up
  ParameterGroups groups;                      ///< parameters with separate learning rates or weight decays
  int64_t warmup_steps = 10;                   ///< length of the linear warm-up, in steps; 0 = none
  double final_learning_rate = 0.1;            ///< last rate of the schedule, as a fraction of learning_rate
  std::string learning_rate_scaling = "none";  ///< "none", "linear", "square-root"; see peak_learning_rate()
  int64_t reference_batch = 0;                 ///< samples per batch for which learning_rate was tuned; 0 = no scaling
  void fields(Fields& f);
};

/// Checks the config. Errors ("optimizer"): an unknown rule; a key that the rule does not use and that is not at its
/// default, with the name of the rule; another number of betas than the rule has; the errors of
/// ParameterGroups::check().
void check_optimizer(const OptimizerConfig& config);

/// Returns config.betas, or the default betas of the rule if they are empty.
std::vector<double> betas_of(const OptimizerConfig& config);

/// Returns a lower bound of the bytes of optimizer state per element of a large matrix, if each updated value has
/// `value_bytes` bytes. Errors ("optimizer"): an unknown optimizer.
double min_state_bytes(const OptimizerConfig& config, double value_bytes);

/// Returns the names of all rules.
std::vector<std::string> rule_names();

}  // namespace colossal::optim
