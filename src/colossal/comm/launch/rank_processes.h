// The processes of the ranks of a run on this host: which of them get a signal, and which still run.
#pragma once
#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace colossal::comm {

/// A process of this host, as /proc describes it.
struct ProcessEntry {
  pid_t id = 0, parent = 0, group = 0, session = 0;
  bool has_ended = false;  ///< true = it waits for its parent to read its status
};

/// Returns the processes that this one may see; none if /proc is not mounted. A process that starts or ends during the
/// call may be missing.
std::vector<ProcessEntry> list_processes();

/// Returns true if the process was started with this environment variable, given as "NAME=value". Returns false if its
/// environment cannot be read.
bool was_started_with(pid_t process, const std::string& variable);

/// One rank: a process that the launcher started, and the process group named after it. The process may be a wrapper
/// (a shell script, `uv run`) around the program.
struct RankProcess {
  pid_t group = 0;            ///< process group, and id of its first process
  bool first_runs = true;     ///< the first process has not ended
  bool is_finishing = false;  ///< a signal to end has ended the wrapper; the program may still save
  bool is_over = false;       ///< no process of the group is left
};

/// The launcher must be a subreaper (PR_SET_CHILD_SUBREAPER), so that it becomes the parent of processes whose own
/// parents have ended.
class RankProcesses {
 public:
  /// `variable` is an environment variable, "NAME=value", that all processes of the run have and no others.
  /// `program_of` returns the process of a rank that has joined the run, if it has.
  RankProcesses(std::string variable, std::function<std::optional<pid_t>(size_t rank)> program_of)
      : variable_(std::move(variable)), program_of_(std::move(program_of)) {}

  void add(pid_t first) { ranks_.push_back({.group = first}); }
  std::vector<RankProcess>& ranks() { return ranks_; }
  /// Returns the number of ranks that have a process left.
  int alive() const;
  /// Returns true if the first process of any rank still runs.
  bool any_first_runs() const;

  /// Sends a signal that asks a rank to end. It reaches the program that has joined the run, then the wrappers around
  /// it, but not the processes that the program itself started: it could not finish its step without those that load
  /// its data. If no program has joined, the signal reaches all processes of the rank.
  void ask(size_t rank, int signal);
  /// Sends a signal to the process group of every rank.
  void signal_groups(int signal) const;
  /// Returns the processes of the run that still run. A process that has made a session of its own is a daemon and does
  /// not count.
  std::vector<pid_t> running() const;
  /// Returns true if ask() has signalled this process.
  bool was_asked(pid_t process) const { return asked_.contains(process); }

 private:
  std::vector<pid_t> program_and_wrappers(size_t rank) const;

  const std::string variable_;
  const std::function<std::optional<pid_t>(size_t)> program_of_;
  std::vector<RankProcess> ranks_;
  std::set<pid_t> asked_;
};

}  // namespace colossal::comm
