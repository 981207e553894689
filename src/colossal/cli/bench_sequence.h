// `colossal bench sequence`
#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench sequence`: a row for each number of ranks and each mode of sequence parallelism: what a rank sends
/// and keeps in the attention of a layer, measured beside the formulas, and what the busiest one computes over the
/// mean. Ranks are threads of this process.
int bench_sequence(const Arguments& arguments);

}  // namespace colossal::cli
