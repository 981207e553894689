// Colossal's own launcher: starts copies of one command on this host, as the ranks of one run. The command may be any
// program; comm::launch() in it, in C++ or Python, finds the other ranks.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace colossal::comm {

struct LocalRanks {
  int ranks = 1;
  std::vector<std::string> command;  ///< file and arguments, the same for every rank; the file is searched in PATH
  /// added to this process's environment; they override it. The ranks also get process_settings()
  std::map<std::string, std::string> variables;
  std::chrono::milliseconds grace{5000};  ///< time between SIGTERM and SIGKILL for the other ranks after one
                                          ///< has died
  /// called with the cause that ends the run, as it happens: "rank 1 of 4 (process 4242) was killed by SIGKILL; ending
  /// the other ranks". Empty = no reports
  std::function<void(const std::string&)> report;
};

/// Starts the ranks, waits for all of them, and returns the exit status for the caller to exit with. The status is 0
/// if all ranks ended with 0, else that of the first rank that did not (128 + signal if it was killed).
///
/// Store: this process hosts the rendezvous store on a free port of 127.0.0.1. The user need not choose a port, and no
/// other host can reach it. The ranks get a secret for it that other users of this host do not know: a random
/// one, or COLOSSAL_SECRET if it is set.
///
/// Output of the ranks passes through unchanged.
///
/// Signals: SIGINT, SIGTERM and SIGHUP to this process are forwarded to every rank, once each. SIGHUP is not forwarded
/// if it is ignored or follows another signal. The ranks may then take the time they need to end with 0 or 128 + that
/// signal. After a second SIGINT or SIGTERM ranks are expected to end at once: they get SIGKILL after `grace`.
///
/// Wrappers: the command may be a shell script or another program that starts the rank's program. Each rank is a
/// process group. A forwarded signal reaches the program that called launch(), and the wrappers around it, but not the
/// processes that the program started, such as workers that load data. Before a program has called launch(), a signal
/// reaches all processes of the rank. If the signal ends a wrapper first, this function waits for the program.
/// Processes that outlive the ranks get SIGTERM, and SIGKILL after `grace`. A process that makes a session of its own
/// (a daemon) is left alone.
///
/// Failures: if a rank is killed, the remaining ranks get SIGTERM at once and SIGKILL after `grace`. If a rank ends
/// with an error, the same happens half a second later, because other ranks may be about to report the same error. A
/// rank that a forwarded signal kills counts as one that ends with an error: the others may be about to act on that
/// signal. If this process dies for any reason, the ranks and the processes that they started are killed, daemons
/// excepted.
///
/// Terminal: the first rank that reads the controlling terminal gets it, and with it Ctrl-C and Ctrl-Z. If Ctrl-C ends
/// that rank, the others get SIGINT. If another rank reads later, the terminal passes to that one. Ctrl-Z stops all
/// ranks and this process.
///
/// Limits: one run at a time in a process. Until the function returns, it alone handles these signals, and this process
/// is a subreaper. It blocks SIGPIPE, so that output to a closed pipe does not end the process.
///
/// Errors: throws Error("launch", ...) if the command cannot be started, or if `ranks` is below 1 or above 16 per core
/// (128 on hosts of up to 8 cores).
int run_local_ranks(const LocalRanks& options);

/// Returns the name of a signal, "SIGKILL" for 9, or "signal 64" if it has no name.
std::string signal_name(int signal);

}  // namespace colossal::comm
