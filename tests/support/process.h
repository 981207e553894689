// Starts real processes for the tests of label dist, and collects what they print.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace colossal::test {

struct Finished {
  int status = -1;    ///< exit status, or 128 + signal
  bool late = false;  ///< was still running at the limit, and has been killed
  double seconds = 0;
  std::string output;  ///< stdout and stderr, as they came
};

struct Process {
  std::vector<std::string> command;
  std::map<std::string, std::string> variables;  ///< on top of this process's; an empty value removes
  std::chrono::seconds limit{60};
  /// Called about every 20 ms with the output so far and the process id.
  std::function<void(const std::string& output, int process)> meanwhile;
};

/// Runs to the end, or to the limit. The process and all it started are in a process group of their own and are killed
/// at the limit.
Finished run_process(const Process& process);
/// Several at once; all are awaited.
std::vector<Finished> run_processes(const std::vector<Process>& processes);

/// Processes that `parent` started and that still run, in order of their ids.
std::vector<int> children_of(int parent);
/// Files that the running process has mapped, shared memory without a name as "/memfd:NAME (deleted)"; none when it has
/// ended.
std::vector<std::string> mapped_files(int process);
/// Path of a program in PATH; empty when it is not there.
std::string find_program(const std::string& name);

/// A port of this host that was free a moment ago.
int free_port();
/// Whether somebody takes connections at that port of this host.
bool is_listening(int port);

}  // namespace colossal::test
