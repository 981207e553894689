// [optimizer]: which update rule, with what. Needs no LibTorch.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/optim/learning_rate.h"
#include "colossal/optim/parameter_groups.h"

namespace colossal::optim {

/// [optimizer]. A rule refuses the keys that it does not use.
struct OptimizerConfig {
  std::string name = "adamw";
  double learning_rate = 1e-3;
  std::vector<double> betas;  ///< empty: the rule's own
  double epsilon = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.9;
  bool nesterov = false;
  double trust = 1e-3;
  int64_t rank = 128;
  int64_t update_every = 200;
  double projection_scale = 0.25;
  std::string step_scale = "adamw";
  bool stochastic_rounding = false;
  ScheduleConfig schedule;
  ParameterGroups groups;
  int64_t warmup_steps = 10;
  double final_learning_rate = 0.1;
  std::string learning_rate_scaling = "none";
  int64_t reference_batch = 0;
  void fields(Fields& f);
};

/// Errors ("optimizer"): keys that the rule does not use and that are not at their default, naming the rule; another
/// number of betas than it has.
void check_optimizer(const OptimizerConfig& config);

/// The betas that `config` asks for, or those of its rule.
std::vector<double> betas_of(const OptimizerConfig& config);

/// Bytes of state for each element of a large matrix, at least, where the values that are updated have `value_bytes`
/// each.
/// Errors: an unknown optimizer.
double least_state_bytes(const OptimizerConfig& config, double value_bytes);

/// Names of all rules.
std::vector<std::string> rule_names();

}  // namespace colossal::optim
