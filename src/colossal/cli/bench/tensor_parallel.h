#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench tensor-parallel`: prints a row for each number of ranks and each mode they can form. A mode that the
/// sizes do not fit is one line with the reason under the table. Ranks are threads of this process.
int bench_tensor_parallel(const Arguments& arguments);

}  // namespace colossal::cli
