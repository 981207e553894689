// What an optimizer keeps, before there is one.
#pragma once

namespace colossal::optim {

struct OptimizerConfig;

/// Bytes of state for each element of a large matrix, at least, where the values that are updated have `value_bytes` each.
/// Errors: an unknown optimizer.
double least_state_bytes(const OptimizerConfig& config, double value_bytes);

}  // namespace colossal::optim
