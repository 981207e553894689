#include <CLI/CLI.hpp>
#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/suggest.h"
#include "colossal/cli/become.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/local_ranks.h"

namespace colossal::cli {

int run(const Arguments& arguments) {
  CLI::App app(
      "Starts N ranks of one run on this host: copies of `colossal COMMAND ARGUMENTS...`, or of any program after --: "
      "`colossal run -n 2 -- python train.py`.",
      "colossal run");
  int count = 0;
  app.add_option("-n,--ranks", count, "number of ranks")->required()->check(CLI::Range(1, 65536));
  app.prefix_command();  // the first argument that is not an option of `run` is the command
  // A `--` after COMMAND is an argument of COMMAND.
  const auto marker = std::find(arguments.begin(), arguments.end(), "--");
  parse(app, Arguments(arguments.begin(), marker));
  Arguments command = app.remaining();
  if (!command.empty()) {
    if (find_command(commands(), command[0]) == nullptr)
      throw UsageError(concat("colossal run: unknown command `", command[0], "`",
                              did_you_mean(command[0], names_of(commands())), "; write `colossal run -n ", count,
                              " -- ", command[0], " ...` to start a program"));
    command.insert(command.begin(), this_program());
  }
  command.insert(command.end(), marker + (command.empty() && marker != arguments.end() ? 1 : 0), arguments.end());
  if (command.empty())
    throw UsageError("usage: colossal run -n N COMMAND ARGUMENTS..., or colossal run -n N -- PROGRAM ARGUMENTS...");
  return comm::run_local_ranks({.ranks = count, .command = command, .report = say});
}

}  // namespace colossal::cli
