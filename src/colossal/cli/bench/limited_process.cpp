#include "colossal/cli/bench/limited_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "colossal/base/bytes.h"
#include "colossal/base/clock.h"
#include "colossal/base/error.h"

namespace colossal::cli {
namespace {

constexpr int kMilliseconds = 20;  // interval between two checks
constexpr int kReads = 8;          // reads that empty a pipe, even if a process still writes to it

/// Returns the peak resident memory of a process so far, in bytes; 0 = it has ended.
int64_t peak_of(pid_t process) {
  std::ifstream status(concat("/proc/", process, "/status"));
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) return std::stoll(line.substr(6)) << 10;
  return 0;
}

/// Runs in the child after fork(), where allocations are not allowed.
[[noreturn]] void become(char* const* words, int out, int error, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score >= 0 && write(score, "1000", 4) != 4) _exit(127);
  dup2(out, STDOUT_FILENO);
  dup2(error, STDERR_FILENO);
  execv(words[0], words);
  _exit(127);
}

struct Pipe {
  Pipe() {
    const int error = pipe2(ends, O_CLOEXEC) == 0 ? 0 : errno;
    require(error == 0, "bench", "no pipe can be made: ", std::strerror(error));
  }
  ~Pipe() { close_reader(), close_writer(); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_reader() { close_end(0); }
  void close_writer() { close_end(1); }
  void close_end(int which) {
    if (ends[which] >= 0) close(ends[which]);
    ends[which] = -1;
  }
  /// Appends the available bytes to `text`. Closes the reader at the end of the stream.
  void read_to(std::string& text) {
    char buffer[1 << 14];
    const ssize_t count = read(ends[0], buffer, sizeof(buffer));
    if (count > 0) text.append(buffer, static_cast<size_t>(count));
    if (count == 0) close_reader();
  }
  int ends[2] = {-1, -1};
};

/// Appends the bytes that arrive from both pipes within `milliseconds` to the texts. Returns false if none arrived or
/// both pipes are closed.
bool read_both(Pipe& out, std::string& output, Pipe& error, std::string& said, int milliseconds) {
  pollfd ends[] = {{out.ends[0], POLLIN, 0}, {error.ends[0], POLLIN, 0}};  // poll() ignores a closed end, which is -1
  if (poll(ends, 2, milliseconds) <= 0) return false;
  if (ends[0].revents) out.read_to(output);
  if (ends[1].revents) error.read_to(said);
  return true;
}

/// Returns true if the child has ended, and sets its status.
bool has_ended(pid_t process, int& status) {
  const pid_t answer = waitpid(process, &status, WNOHANG);
  if (answer < 0 && errno == EINTR) return false;
  if (answer < 0) status = 127 << 8;  // another part of the program has collected the status
  return answer != 0;
}

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);  // npos + 1 is 0
}

}  // namespace

LimitedRun run_limited(std::vector<std::string> command, int64_t max_resident, double seconds) {
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  Pipe out, error;
  const pid_t parent = getpid(), process = fork();
  require(process >= 0, "bench", "no process can be started: ", std::strerror(errno));
  if (process == 0) become(words.data(), out.ends[1], error.ends[1], parent);
  out.close_writer(), error.close_writer();
  LimitedRun run;
  std::string said;
  const Stopwatch watch;
  int status = 0;
  // Waits for the end of the process, not of its output: it may close its output and continue, or leave it open to its
  // children.
  while (!has_ended(process, status)) {
    read_both(out, run.output, error, said, kMilliseconds);
    run.resident_bytes = std::max(run.resident_bytes, peak_of(process));
    run.took_too_much = run.took_too_much || run.resident_bytes > max_resident;
    run.took_too_long = run.took_too_long || watch.seconds() > seconds;
    if (run.took_too_much || run.took_too_long) kill(process, SIGKILL);
  }
  for (int i = 0; i < kReads && read_both(out, run.output, error, said, 0);) ++i;  // reads what the ended process wrote
  run.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
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
