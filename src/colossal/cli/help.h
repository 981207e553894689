#pragma once
#include "colossal/cli/commands.h"

namespace colossal::cli {

/// `colossal help`, `colossal help COMMAND`, `colossal help config [SECTION]`.
int help(const Arguments& arguments, const std::vector<Command>& commands);

}  // namespace colossal::cli
