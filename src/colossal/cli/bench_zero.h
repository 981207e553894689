#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench zero`: a row for each number of ranks and each stage: what a rank sends in a training step and what
/// it holds in it, measured beside the formulas. Ranks are threads of this process.
int bench_zero(const Arguments& arguments);

}  // namespace colossal::cli
