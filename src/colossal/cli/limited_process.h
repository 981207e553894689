// A process of our own that may not take more memory than told.
//
//   const LimitedRun run = run_limited({"/proc/self/exe", "info"}, int64_t{2} << 30, 600);
//   if (run.status != 0) say(run.last_words);
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace colossal::cli {

struct LimitedRun {
  int status = 0;              ///< of its end; 128 + the signal that ended it
  bool took_too_much = false;  ///< more resident memory than it may: it was killed then
  bool took_too_long = false;  ///< likewise
  int64_t resident_bytes = 0;  ///< at most, as far as it was seen (every 20 ms)
  std::string output;          ///< what it wrote to stdout
  int64_t most_resident = 0;   ///< the limits that it had
  double seconds = 0;
  std::string last_words;  ///< the last line that it wrote to stderr

  /// Why it did not come to its end by itself, or with another status than 0: told as a row of a table; else empty.
  std::string why_not() const;
};

/// Runs `command` (a path and its arguments) to its end, which comes by force when it has more than `most_resident`
/// bytes of memory or takes longer than `seconds`, whatever it does with its output, or when this process dies. Nobody
/// waits for processes of its own that it leaves behind. Where the system is short of memory, it
/// is the first to go. Errors ("bench"): it cannot be started.
LimitedRun run_limited(std::vector<std::string> command, int64_t most_resident, double seconds);

}  // namespace colossal::cli
