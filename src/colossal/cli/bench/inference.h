#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench inference --from FOLDER`: measures tokens per second of prompts and completions, time to the first
/// token, and latencies under load. Prints the limit set by the bandwidth of reading weights for comparison.
int bench_inference(const Arguments& arguments);

}  // namespace colossal::cli
