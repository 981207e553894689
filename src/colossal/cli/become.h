#pragma once
#include <string>

#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// Replaces this program by `colossal-torch command arguments...` in the same process. That program is in the same
/// folder as this one, or in ../libexec/colossal of an installation. Adds comm::process_settings() to the environment,
/// and for chat, generate and serve GLIBC_TUNABLES, unless it is set: the heap is in huge pages if the system has them.
/// Errors ("program"): the program is missing or cannot be started.
[[noreturn]] void become_torch(const std::string& command, const Arguments& arguments);

/// Returns the path of this program, with which a copy of it can be started under its own name. Returns
/// "/proc/self/exe" if its file has been removed or replaced.
std::string this_program();

}  // namespace colossal::cli
