// Runs a child process with limits on memory and time.
//
//   const LimitedRun run = run_limited({"/proc/self/exe", "info"}, int64_t{2} << 30, 600);
//   if (run.status != 0) say(run.last_words);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::cli {

struct LimitedRun {
  int status = 0;              ///< exit status, or 128 + the signal that ended it
  bool took_too_much = false;  ///< killed because it exceeded the limit of resident memory
  bool took_too_long = false;  ///< killed because it exceeded the time limit
  int64_t resident_bytes = 0;  ///< peak resident memory in bytes, read every 20 ms
  std::string output;          ///< output on stdout
  /// Limits of the run: bytes of resident memory, and seconds.
  int64_t max_resident = 0;
  double seconds = 0;
  std::string last_words;  ///< last line on stderr

  /// Returns why the process was killed or failed, as text for a row of a table; "" if its status is 0.
  std::string why_not() const;
};

/// Runs `command` (a path and its arguments) to its end. Kills it if it has more than `max_resident` bytes of resident
/// memory or takes longer than `seconds`, whether or not it closes its output. It is killed too if this process dies.
/// Does not wait for processes that the command started. If the system runs out of memory, it is the first process that
/// the kernel kills. Errors: those of ChildProcess.
LimitedRun run_limited(const std::vector<std::string>& command, int64_t max_resident, double seconds);

}  // namespace colossal::cli
