// How a command gets its ranks: those a launcher made, or local ones that it starts itself.
#pragma once
#include <functional>
#include <string>

#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// When no launcher started this process and `ranks` > 1: runs `ranks` copies of `colossal command arguments...` on this host and returns their
/// exit status. Otherwise returns work(), which is then one rank of the world.
/// Errors of work() that do not carry a rank yet get one.
int with_ranks(int64_t ranks, const std::string& command, const Arguments& arguments, const std::function<int()>& work);

/// Tells the user what happens to the ranks, on stderr.
void say(const std::string& what);

/// True once SIGINT or SIGTERM has arrived since watch_stop_signals(). A second signal ends the process at once.
void watch_stop_signals();
bool stop_requested();
/// 128 + the signal, as a shell reports it; 0 before one.
int stop_status();

}  // namespace colossal::cli
