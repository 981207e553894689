// The commands of the program. A new one is two files here (`x.h` with `int x(const Arguments&)`, `x.cpp`) and a row in
// commands.cpp; `colossal help`, the suggestions for a misspelt name and the tests read the same table.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"

namespace colossal::run {
struct Program;
}

namespace colossal::cli {

struct Command {
  const char* name;
  const char* help;                          // one line
  std::function<int(const Arguments&)> run;  // returns the exit status; throws Error, UsageError or HelpWanted
};

/// Returns the commands of `program`, which must outlive them. Configs and folders may name the architectures and
/// objectives of `program`; null = only those of the library.
std::vector<Command> commands(const run::Program* program = nullptr);

/// Returns the command with this name in `commands`, or nullptr.
const Command* find_command(const std::vector<Command>& commands, const std::string& name);

std::vector<std::string> names_of(const std::vector<Command>& commands);

/// Runs the command that argv[1] names, among commands(program), and returns the exit status of the process: see
/// cli/main.h.
int run_program(int argc, char** argv, const run::Program* program);

}  // namespace colossal::cli
