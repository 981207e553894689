#pragma once
#include "colossal/cli/commands.h"

namespace colossal::cli {

/// `colossal help`, `colossal help COMMAND`, `colossal help config [SECTION]`. A final `--markdown` after `help` or
/// `help config` prints the reference pages of docs (cli/reference.h), including the architectures of `program`
/// (null = only those of the library).
int help(const Arguments& arguments, const std::vector<Command>& commands, const run::Program* program = nullptr);

}  // namespace colossal::cli
