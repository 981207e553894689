#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench memory`: finds the largest GPT that trains real steps within the budgets of [memory]. Each try runs
/// in its own process and prints one row. The result is compared with the largest GPT without [memory].
int bench_memory(const Arguments& arguments);

}  // namespace colossal::cli
