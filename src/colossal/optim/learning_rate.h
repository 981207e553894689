// Learning-rate schedules as pure functions of the step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"

namespace colossal::optim {

struct OptimizerConfig;

/// [optimizer.schedule]; `schedule = "cosine"` is its name. A schedule refuses the keys that it does not use.
struct ScheduleConfig {
  std::string name = "cosine";
  double power = 2;                           ///< polynomial
  std::vector<double> milestones{0.5, 0.75};  ///< multi-step
  double factor = 0.1;                        ///< multi-step
  double rise = 0.3;                          ///< one-cycle
  double decay = 0.2;                         ///< warmup-stable-decay
  void fields(Fields& f);
};

/// Names that [optimizer] schedule may take, and what each of them is, in a line.
struct ScheduleName {
  const char *name, *description;
};
std::vector<ScheduleName> learning_rate_schedules();

/// The rate that schedules call the peak: learning_rate, scaled from reference_batch to `batch` samples as
/// learning_rate_scaling says ("linear": Goyal et al., arXiv:1706.02677; "square-root": Krizhevsky, arXiv:1404.5997).
double peak_learning_rate(const OptimizerConfig& config, int64_t batch);

/// Learning rate of step `step` (from 1) of `steps` with batches of `batch` samples. While warming up it rises linearly
/// to where the schedule then begins. With s = (step - warmup_steps) / (steps - warmup_steps), f = final_learning_rate,
/// all in units of the peak:
///
///   constant             1
///   linear               f + (1 - f) (1 - s)
///   cosine               f + (1 - f) (1 + cos(pi s)) / 2                         SGDR, arXiv:1608.03983, without
///   restarts
///   polynomial           f + (1 - f) (1 - s)^power
///   multi-step           factor^(number of `milestones` m with m * steps < step)
///   one-cycle            1/25 to 1 along half a cosine while s <= rise, then 1 to f along another
///   arXiv:1708.07120
///   inverse-square-root  sqrt(max(warmup_steps, 1) / step)                       arXiv:1706.03762
///   warmup-stable-decay  1, in the last `decay` of all steps linearly down to f  arXiv:2404.06395
///
/// A function of its arguments alone: resuming needs no state.
double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps, int64_t batch);

/// Errors ("optimizer"), with the nearest values that are legal: a warm-up longer than the run, milestones that do not
/// rise or fall into the warm-up, a warm-up and a decay that overlap, scaling without a reference, keys that the
/// schedule does not use.
void check_learning_rate(const OptimizerConfig& config, int64_t steps, int64_t batch);

}  // namespace colossal::optim
