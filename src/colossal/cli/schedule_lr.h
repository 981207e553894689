#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal schedule-lr [CONFIG] [--optimizer.schedule=NAME ...] [--compare] [--output FILE.svg]`: the learning rate
/// of every step of a run, in the terminal and as a picture; with --compare that of every schedule.
/// `program`: whose tables the config may have; null: that of the library.
int schedule_lr(const Arguments& arguments, const run::Program* program = nullptr);

}  // namespace colossal::cli
