#include "colossal/cli/run.h"

#include <CLI/CLI.hpp>

#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/local_ranks.h"

namespace colossal::cli {

int run(const Arguments& arguments) {
  CLI::App app("Starts N copies of `colossal COMMAND ARGUMENTS...` on this host as the ranks of one run.",
               "colossal run");
  int count = 0;
  app.add_option("--ranks", count, "number of copies")->required()->check(CLI::Range(1, 65536));
  app.prefix_command();  // the first argument that is not an option of `run` is the command
  parse(app, arguments);
  const std::vector<std::string> command = app.remaining();
  if (command.empty()) throw UsageError("usage: colossal run --ranks N COMMAND ARGUMENTS...");
  comm::LocalRanks ranks{.ranks = count, .command = {"/proc/self/exe"}};
  ranks.command.insert(ranks.command.end(), command.begin(), command.end());
  ranks.report = say;
  return comm::run_local_ranks(ranks);
}

}  // namespace colossal::cli
