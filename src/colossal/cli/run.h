#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal run --ranks N COMMAND ...`: starts N copies of `colossal COMMAND ...` as the ranks of one world on this
/// host
int run(const Arguments& arguments);

}  // namespace colossal::cli
