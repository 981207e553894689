// How a command reads what stands behind its name.
#pragma once
#include <stdexcept>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace colossal::cli {

/// The words behind the command's name.
using Arguments = std::vector<std::string>;

/// A command line that cannot be understood: main() prints it and ends with status 2.
class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Not an error: `--help` was among the arguments, and this is the text. main() prints it and ends with status 0.
class HelpWanted : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Fills the variables bound to the options of `app`. Errors: UsageError, HelpWanted.
void parse(CLI::App& app, const Arguments& arguments);

/// The words that `app` left over (it must allow extras), all of which must look like `--section.key=value`.
/// Errors: UsageError for any other word.
std::vector<std::string> config_flags(const CLI::App& app);

}  // namespace colossal::cli
