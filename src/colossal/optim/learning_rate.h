// Learning-rate schedules as pure functions of the step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::optim {

struct OptimizerConfig;

/// The keys of [optimizer.schedule]; `schedule = "cosine"` sets only its name. A schedule refuses the keys that it does
/// not use.
struct ScheduleConfig {
  std::string name = "cosine";                ///< one of learning_rate_schedules()
  double power = 2;                           ///< exponent of polynomial
  std::vector<double> milestones{0.5, 0.75};  ///< multi-step: positions of the drops, as fractions of all steps
  double factor = 0.1;                        ///< multi-step: factor of the rate at each milestone
  double rise = 0.3;   ///< one-cycle: length of the rise, as a fraction of the steps after the warm-up
  double decay = 0.2;  ///< warmup-stable-decay: length of the decay, as a fraction of all steps
  void fields(Fields& f);
};

/// A name that [optimizer] schedule may take, and a one-line description of it.
struct ScheduleName {
  const char *name, *description;
};
std::vector<ScheduleName> learning_rate_schedules();

/// Returns the peak rate of the schedules: learning_rate, scaled from reference_batch to `batch` samples by the rule
/// learning_rate_scaling ("linear": Goyal et al., arXiv:1706.02677; "square-root": Krizhevsky, arXiv:1404.5997).
double peak_learning_rate(const OptimizerConfig& config, int64_t batch);

/// Returns the learning rate of step `step` (from 1) of `steps`, with batches of `batch` samples. During the warm-up it
/// rises linearly to the first rate of the schedule. With s = (step - warmup_steps) / (steps - warmup_steps) and f =
/// final_learning_rate, in units of the peak:
///
///   constant             1
///   linear               f + (1 - f) (1 - s)
///   cosine               f + (1 - f) (1 + cos(pi s)) / 2                         SGDR, no restarts, arXiv:1608.03983
///   polynomial           f + (1 - f) (1 - s)^power
///   multi-step           factor^(number of `milestones` m with m * steps < step)
///   one-cycle            1/25 to 1 along half a cosine while s <= rise,
///                        then 1 to f along another one                           arXiv:1708.07120
///   inverse-square-root  sqrt(max(warmup_steps, 1) / step)                       arXiv:1706.03762
///   warmup-stable-decay  1, then linear to f during the last `decay` of all steps  arXiv:2404.06395
///
/// The rate depends on the arguments only, so resuming needs no state.
double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps, int64_t batch);

/// Checks the schedule. Errors ("optimizer"), with the nearest valid values: a warm-up longer than the run, milestones
/// that do not ascend or that precede the end of the warm-up, a warm-up and a decay that overlap, scaling without a
/// reference batch, keys that the schedule does not use.
void check_learning_rate(const OptimizerConfig& config, int64_t steps, int64_t batch);

}  // namespace colossal::optim
