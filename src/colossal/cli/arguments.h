// Parses the arguments of a command.
#pragma once
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace colossal::cli {

/// Arguments after the command's name.
using Arguments = std::vector<std::string>;

/// The command line is invalid: main() prints the message and ends with status 2.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Not an error: `--help` was among the arguments. main() prints the text and ends with status 0.
class HelpWanted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Argument with which a command prints its help as Markdown, a section of docs/reference/cli.md.
inline constexpr const char* kMarkdownHelp = "--help-markdown";

/// Fills the variables bound to the options of `app`. Previous names of renamed options are accepted for one release,
/// with a warning on rank 0: "--guess is now --draft-tokens".
/// Errors: UsageError; HelpWanted for `--help` and kMarkdownHelp.
void parse(CLI::App& app, const Arguments& arguments);

/// Returns the help that `command` throws if its only argument is `form`, which is "--help" or kMarkdownHelp.
std::string help_of(const std::function<int(const Arguments&)>& command, const std::string& form);

/// Returns the options among `names` that the command line gave.
std::vector<std::string> given_options(const CLI::App& app, const std::vector<std::string>& names);
/// Refuses the options `names` if the command line gave them: "--a and --b have no effect BECAUSE". Call it after
/// parse() for each option that the other options turn off. Errors: UsageError.
void refuse_options(const CLI::App& app, const std::vector<std::string>& names, const std::string& because);
/// Returns "--a, --b and --c have" or "--a has", the start of a sentence about options.
std::string subject_of(const std::vector<std::string>& names);

/// Returns the arguments that `app` did not parse (it must allow extras). All must look like `--section.key=value`.
/// Errors: UsageError for any other argument.
std::vector<std::string> config_flags(const CLI::App& app);

}  // namespace colossal::cli
