// Starts real processes for tests with the label dist, and collects their output.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace colossal::test {

/// The result of a process.
struct Finished {
  int status = -1;    ///< exit status, or 128 + signal
  bool late = false;  ///< true = the process still ran at the limit and was killed
  double seconds = 0;
  std::string output;  ///< stdout and stderr, in the order of the writes
};

/// A process to run.
struct Process {
  std::vector<std::string> command;
  std::map<std::string, std::string> variables;  ///< environment variables to set; an empty value removes one
  std::chrono::seconds limit{60};
  /// A function that is called about every 20 ms with the output so far and the process id.
  std::function<void(const std::string& output, int process)> meanwhile;
};

/// Runs a process until it ends or the limit passes. The process and its children are in a process group of their own,
/// which is killed at the limit.
Finished run_process(const Process& process);
/// Runs several processes at once and waits for all of them.
std::vector<Finished> run_processes(const std::vector<Process>& processes);

/// Returns the running processes that `parent` started, in order of their ids. The guard of a launcher is left out, so
/// these are the ranks of a launcher.
std::vector<int> children_of(int parent);
/// Returns the files that a running process has mapped; none if it has ended. Shared memory without a name is
/// "/memfd:NAME (deleted)".
std::vector<std::string> mapped_files(int process);
/// Returns the path of a program in PATH, or "" if it is not there.
std::string find_program(const std::string& name);

/// Returns a port of this host that was free at the time of the call.
int free_port();
/// Returns true if a process of this host accepts connections at that port.
bool is_listening(int port);

}  // namespace colossal::test
