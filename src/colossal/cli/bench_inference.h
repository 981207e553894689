#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench inference --from FOLDER`: tokens a second of prompts and of answers, time to the first token and
/// latencies under a load, beside what reading the weights allows.
int bench_inference(const Arguments& arguments);

}  // namespace colossal::cli
