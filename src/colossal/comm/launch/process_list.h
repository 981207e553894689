// Reads the processes of this host from /proc.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace colossal::comm {

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

}  // namespace colossal::comm
