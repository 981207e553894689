// The commands of the program. A new one is two files here (`x.h` with `int x(const Arguments&)`, `x.cpp`) and a row in
// commands.cpp; `colossal help`, the suggestions for a misspelt name and the tests read the same table.
#pragma once
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"

namespace colossal::cli {

struct Command {
  const char* name;
  const char* help;              // one line
  int (*run)(const Arguments&);  // returns the exit status; throws Error, UsageError or HelpWanted
  bool hidden = false;           // left out of `colossal help`: for the program's own use
};

const std::vector<Command>& commands();

/// The command of that name, or nullptr.
const Command* find_command(const std::string& name);

/// The names that `colossal help` shows.
std::vector<std::string> command_names();

}  // namespace colossal::cli
