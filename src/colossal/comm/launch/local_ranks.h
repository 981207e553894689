// Our own launcher: copies of one command on this host, as the ranks of one run.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace colossal::comm {

struct LocalRanks {
  int ranks = 1;
  std::vector<std::string> command;  ///< file and arguments, the same for every rank; the file is looked for in PATH
  std::map<std::string, std::string> variables;  ///< set on top of this process's environment
  std::chrono::milliseconds grace{5000};         ///< between SIGTERM and SIGKILL for the others, once a rank has died
  /// Told what ends the run, as it happens: "rank 1 of 4 (process 4242) was killed by SIGKILL; ending the other ranks".
  std::function<void(const std::string&)> report;
};

/// Starts the ranks, waits for all of them, and returns the exit status for the caller to end with: 0 when all ended
/// with 0, else that of the first that did not (128 + signal when it was killed).
///
/// This process hosts the rendezvous store, on a free port of 127.0.0.1, so that no port needs to be chosen and no
/// other host reaches it; the ranks get a secret for it that other users of this host do not know. Output passes
/// through unchanged. SIGINT, SIGTERM and SIGHUP (unless it is ignored, or follows another one) to this process are
/// sent on to every rank, once each. Ranks then take the time they need to end by themselves, with 0 or 128 + that
/// signal; a second SIGINT or SIGTERM, of which ranks are expected to end at once, gives them `grace` until SIGKILL.
/// When a rank is killed, or half a second after one has ended with an error, which others may be about to end with
/// too, the rest gets SIGTERM and, after `grace`, SIGKILL. When this process dies, however it does, the ranks are
/// killed with it. One run at a time in a process: until it returns, these signals are handled here alone, and SIGPIPE
/// is held back, so that output which nobody reads any more ends nothing. Errors: throws Error("launch", ...) when the
/// command cannot be started.
int run_local_ranks(const LocalRanks& options);

/// "SIGKILL" for 9, "signal 64" for what has no name.
std::string signal_name(int signal);

}  // namespace colossal::comm
