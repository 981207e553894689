#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench experts`: prints a row for each number of ranks, without and with recomputation of blocks. A number
/// of ranks that the sizes do not fit is one line with the reason under the table. Ranks are threads of this process.
int bench_experts(const Arguments& arguments);

}  // namespace colossal::cli
