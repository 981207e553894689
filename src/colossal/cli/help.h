#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal help`, `colossal help COMMAND`, `colossal help config [SECTION]`.
int help(const Arguments& arguments);

}  // namespace colossal::cli
