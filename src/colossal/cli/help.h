#pragma once
#include "colossal/cli/commands.h"

namespace colossal::cli {

/// `colossal help`, `colossal help COMMAND`, `colossal help config [SECTION]`; with `--markdown` at the end of `help`
/// and `help config` the reference pages of docs (cli/reference.h), which name the architectures of `program`, too.
int help(const Arguments& arguments, const std::vector<Command>& commands, const run::Program* program = nullptr);

}  // namespace colossal::cli
