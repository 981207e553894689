#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal bench memory`: the largest GPT that trains real steps under given budgets of [memory], found by tries in
/// processes of their own: a row a try, and the largest beside that without [memory].
int bench_memory(const Arguments& arguments);

}  // namespace colossal::cli
