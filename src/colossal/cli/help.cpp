#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/suggest.h"
#include "colossal/base/version.h"
#include "colossal/cli/commands.h"
#include "colossal/cli/reference.h"
#include "colossal/run/config.h"

namespace colossal::cli {
namespace {

int print_commands(const std::vector<Command>& commands) {
  std::printf(
      "colossal %s: trains and runs large models, on one core or on many machines, with the same model code\n\n",
      version());
  std::printf("usage: colossal COMMAND [ARGUMENTS]      colossal --version\n\ncommands:\n");
  size_t width = 0;
  for (const std::string& name : names_of(commands)) width = std::max(width, name.size());
  for (const Command& command : commands)
    std::printf("  %-*s  %s\n", static_cast<int>(width), command.name, command.help);
  std::printf("\nstart here: colossal train examples/quickstart.toml\n");
  return 0;
}

bool is_within(const std::string& section, const std::string& wanted) {
  return section == wanted || section.compare(0, wanted.size() + 1, wanted + ".") == 0;
}

int print_config(const Arguments& wanted, const run::Program* program) {
  std::vector<KeyHelp> keys = describe_config(run::Config());
  const auto after_data =
      std::find_if(keys.rbegin(), keys.rend(), [](const KeyHelp& key) { return key.section == "data"; });
  const std::vector<KeyHelp> of_data = run::describe_data_keys(own_data_keys(program));
  keys.insert(after_data.base(), of_data.begin(), of_data.end());
  for (KeyHelp& key : own_table_keys(program)) keys.push_back(std::move(key));
  if (!wanted.empty()) {
    std::set<std::string> sections;
    for (const auto& key : keys) sections.insert(key.section);
    std::erase_if(keys, [&](const KeyHelp& key) { return !is_within(key.section, wanted[0]) && key.key != wanted[0]; });
    if (keys.empty()) {
      const bool of_model = is_within(wanted[0], "model");
      throw UsageError("the config has no section or key `" + wanted[0] + "`" +
                       (of_model ? "; `colossal models` lists the keys of [model] that only one architecture has"
                                 : did_you_mean(wanted[0], {sections.begin(), sections.end()})));
    }
  } else {
    std::printf(
        "Every key of a config file (TOML), as `key = default` and its meaning. Commands that take a config accept "
        "each key\nas a flag, too: --section.key=value. `colossal models` lists the keys of [model] that only one "
        "architecture has,\nsuch as those of image models.\n\n");
  }
  std::fputs(format_help(keys).c_str(), stdout);
  return 0;
}

}  // namespace

int help(const Arguments& arguments, const std::vector<Command>& commands, const run::Program* program) {
  if (arguments == Arguments{kMarkdownHelp})
    throw HelpWanted(
        "## colossal help\n\nLists the commands, explains one of them, or lists the keys of a config file. With "
        "`--markdown` it prints the reference pages of docs.\n\nUsage: `colossal help [COMMAND | config [SECTION]] "
        "[--markdown]`\n");
  if (arguments == Arguments{"--markdown"}) return print_command_reference(commands);
  if (arguments == Arguments{"config", "--markdown"}) return print_config_reference(program);
  if (arguments.empty() || arguments[0] == "help" || arguments[0] == "--help" || arguments[0] == "-h")
    return print_commands(commands);
  if (arguments[0] == "config") return print_config({arguments.begin() + 1, arguments.end()}, program);
  const Command* command = find_command(commands, arguments[0]);
  if (command != nullptr) return command->run({"--help"});
  std::vector<std::string> topics = names_of(commands);
  topics.push_back("config");
  throw UsageError("no help on `" + arguments[0] + "`" + did_you_mean(arguments[0], topics) +
                   "; `colossal help` lists the commands");
}

}  // namespace colossal::cli
