#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench serve --url URL`: sends completions to an OpenAI-compatible server and prints tokens per second and
/// latencies. Returns 1 if all requests failed.
int bench_serve(const Arguments& arguments);

}  // namespace colossal::cli
