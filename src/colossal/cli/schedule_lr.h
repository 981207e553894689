#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal schedule-lr [CONFIG] [--optimizer.schedule=NAME ...] [--compare] [--output FILE.svg]`: the learning rate
/// of every step of a run, in the terminal and as a picture; with --compare that of every schedule.
int schedule_lr(const Arguments& arguments);

}  // namespace colossal::cli
