#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench zero`: prints a row for each number of ranks and each stage. It compares the bytes that a rank sends
/// and holds in a training step with the formulas. Ranks are threads of this process.
int bench_zero(const Arguments& arguments);

}  // namespace colossal::cli
