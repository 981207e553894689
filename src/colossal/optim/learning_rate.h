// Learning-rate schedules as pure functions of the step.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::optim {

struct OptimizerConfig;

/// Names that [optimizer] schedule may take.
std::vector<std::string> learning_rate_schedules();

/// Learning rate of step `step` (from 1) of `steps`: step / warmup_steps of the peak while warming up, then the schedule from the peak to
/// final_learning_rate * peak, which step `steps` has. A function of its arguments alone: resuming needs no state.
double learning_rate(const OptimizerConfig& config, int64_t step, int64_t steps);

}  // namespace colossal::optim
