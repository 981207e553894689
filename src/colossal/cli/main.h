#pragma once
#include <functional>

namespace colossal::cli {

/// The whole program: picks the command and runs it under end_with_message().
int main(int argc, char** argv);

/// Runs `work` and returns its exit status; what it throws becomes one message on stderr (`colossal: [component] ...`)
/// and status 1, or 2 for a command line that cannot be understood. HelpWanted is printed on stdout and ends with 0.
/// Never throws.
int end_with_message(const std::function<int()>& work);

}  // namespace colossal::cli
