#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal run --ranks N COMMAND ...`: starts N copies of `colossal COMMAND ...` on this host as the ranks of one
/// world. `colossal run --ranks N -- PROGRAM ...`: the same with copies of any program, which is searched in PATH.
int run(const Arguments& arguments);

}  // namespace colossal::cli
