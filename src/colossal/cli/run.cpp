#include "colossal/cli/run.h"

#include "colossal/cli/local_world.h"
#include "colossal/comm/launch/local_ranks.h"

namespace colossal::cli {

int run(const Arguments& arguments) {
  // Only the words before the command are ours: everything behind it belongs to the command.
  constexpr const char* kUsage = "usage: colossal run --ranks N COMMAND ARGUMENTS...";
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h")
    throw HelpWanted(std::string(kUsage) +
                     "\nStarts N copies of `colossal COMMAND ARGUMENTS...` on this host as the ranks of one run.\n");
  if (arguments.size() < 3 || arguments[0] != "--ranks") throw UsageError(kUsage);
  const std::string& count = arguments[1];
  const bool is_number =
      !count.empty() && count.size() < 6 && count.find_first_not_of("0123456789") == std::string::npos;
  if (!is_number || std::stoi(count) < 1) throw UsageError("--ranks wants a positive number: got " + count);
  comm::LocalRanks ranks{.ranks = std::stoi(count), .command = {"/proc/self/exe"}};
  ranks.command.insert(ranks.command.end(), arguments.begin() + 2, arguments.end());
  ranks.report = say;
  return comm::run_local_ranks(ranks);
}

}  // namespace colossal::cli
