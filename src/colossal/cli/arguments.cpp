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

std::vector<std::string> given_options(const CLI::App& app, const std::vector<std::string>& names) {
  std::vector<std::string> given;
  for (const std::string& name : names)
    if (app.count(name) > 0) given.push_back(name);
  return given;
}

std::string subject_of(const std::vector<std::string>& names) {
  std::string subject;
  for (size_t i = 0; i < names.size(); ++i)
    subject += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  return subject + (names.size() > 1 ? " have" : " has");
}

void refuse_options(const CLI::App& app, const std::vector<std::string>& names, const std::string& because) {
  const std::vector<std::string> given = given_options(app, names);
  if (!given.empty()) throw UsageError(app.get_name() + ": " + subject_of(given) + " no effect " + because);
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
