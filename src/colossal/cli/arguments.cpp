#include "colossal/cli/arguments.h"

#include <CLI/CLI.hpp>

namespace colossal::cli {

void parse(CLI::App& app, const Arguments& arguments) {
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes them from the back
  } catch (const CLI::CallForHelp&) {
    throw HelpWanted(app.help());
  } catch (const CLI::ParseError& error) {
    throw UsageError(app.get_name() + ": " + error.what() + "; see `" + app.get_name() + " --help`");
  }
}

std::vector<std::string> config_flags(const CLI::App& app) {
  std::vector<std::string> flags = app.remaining();
  for (const auto& flag : flags) {
    const bool is_flag = flag.compare(0, 2, "--") == 0 && flag.find('=') != std::string::npos;
    if (is_flag) continue;
    throw UsageError(app.get_name() + ": what is `" + flag +
                     "`? Keys of the config are written --section.key=value; see `" + app.get_name() + " --help`");
  }
  return flags;
}

}  // namespace colossal::cli
