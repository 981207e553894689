#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

/// `colossal schedule-lr [CONFIG] [--optimizer.schedule=NAME ...] [--compare] [--output FILE.svg]`: plots the learning
/// rate of every step of a run, in the terminal and as a picture. With --compare it plots every schedule. `program` has
/// the tables that the config may have; null = the library's own.
int schedule_lr(const Arguments& arguments, const run::Program* program = nullptr);

}  // namespace colossal::cli
