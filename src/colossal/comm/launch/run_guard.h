// Ends the processes of a run if the launcher dies.
//
//   RunGuard guard(ranks, "COLOSSAL_RUN=5f3a...");
//   guard.watch(group);    // a process group of a rank has started
//   guard.forget(group);   // it is over
#pragma once
#include <sys/types.h>

#include <string>

namespace colossal::comm {

/// A small process that waits for the death of this one, of any cause, and then sends SIGKILL to the process groups
/// that it watches, and to the processes of its session that were started with a certain environment variable. It has
/// its own process group, so signals for the launcher's group do not reach it. In `ps` it is called "colossal-guard".
///
/// Errors: throws Error("launch", ...) if the process cannot be started. If the guard itself is killed, its duty is not
/// done by another.
class RunGuard {
 public:
  /// `groups` is the maximum number of groups to watch at a time, `variable` the environment variable, "NAME=value",
  /// that all processes of the run have and no others.
  RunGuard(int groups, const std::string& variable);
  /// Ends the guard. It does nothing more if it watches no group at this time.
  ~RunGuard();
  RunGuard(const RunGuard&) = delete;
  RunGuard& operator=(const RunGuard&) = delete;

  void watch(pid_t group) const;
  void forget(pid_t group) const;

 private:
  int orders_ = -1;  // a group to watch, or minus a group to forget
  pid_t process_ = 0;
};

}  // namespace colossal::comm
