// `colossal bench NAME`. A new benchmark is two files here (`x.h` with `int bench_x(const Arguments&)`, `x.cpp`)
// and a row in bench.cpp.
#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// Runs the benchmark that the first argument names. Without arguments, lists all benchmarks.
int bench(const Arguments& arguments);

}  // namespace colossal::cli
