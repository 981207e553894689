#include "colossal/cli/bench/limited_process.h"

#include <sys/types.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "colossal/base/bytes.h"
#include "colossal/base/child_process.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"

namespace colossal::cli {
namespace {

constexpr int kMilliseconds = 20;  // interval between two checks
constexpr int kReads = 8;          // reads that empty both pipes, even if a process still writes to them

/// Returns the peak resident memory of a process so far, in bytes; 0 = it has ended.
int64_t peak_of(pid_t process) {
  std::ifstream status(concat("/proc/", process, "/status"));
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) << 10;
  return 0;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

}  // namespace

LimitedRun run_limited(const std::vector<std::string>& command, int64_t max_resident, double seconds) {
  ChildProcess process(command, {.dies_first = true});
  LimitedRun run;
  std::string said;
  const Stopwatch watch;
  // Waits for the end of the process, not of its output: it may close its output and continue, or leave it open to its
  // children.
  while (!process.has_ended()) {
    process.read(run.output, said, kMilliseconds);
    run.resident_bytes = std::max(run.resident_bytes, peak_of(process.id()));
    run.took_too_much = run.took_too_much || run.resident_bytes > max_resident;
    run.took_too_long = run.took_too_long || watch.seconds() > seconds;
    if (run.took_too_much || run.took_too_long) process.kill();
  }
  for (int i = 0; i < kReads && process.read(run.output, said, 0);) ++i;  // reads what the ended process wrote
  run.status = process.status();
  run.last_words = last_line(std::move(said));
  run.max_resident = max_resident, run.seconds = seconds;
  return run;
}

std::string LimitedRun::why_not() const {
  if (took_too_much) return concat("more than ", readable_bytes(max_resident), " resident");
  if (took_too_long) return concat("more than ", seconds, " seconds");
  if (status == 0) return {};
  return last_words.empty() ? concat("ended with status ", status) : last_words;
}

}  // namespace colossal::cli
