#include "colossal/base/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "colossal/base/clock.h"
#include "colossal/base/error.h"

namespace colossal {
namespace {

constexpr double kCheck = 0.002;  // seconds between two checks whether a process has ended

/// Returns `end` with a number above those of standard input, output and error, which a child replaces. A parent that
/// has closed one of them gets its number for a pipe.
Descriptor above_standard(Descriptor end) { return end.value() > STDERR_FILENO ? std::move(end) : duplicate_of(end); }

/// The ends of a pipe. Both are closed in processes that are started.
struct Pipe {
  Pipe() {
    int ends[2];
    const int error = pipe2(ends, O_CLOEXEC) == 0 ? 0 : errno;
    require(error == 0, "process", "no pipe can be made: ", std::strerror(error));
    reader = Descriptor(ends[0]), writer = Descriptor(ends[1]);
    reader = above_standard(std::move(reader)), writer = above_standard(std::move(writer));
    require(reader.is_open() && writer.is_open(), "process", "no pipe can be made: ", std::strerror(errno));
  }
  Descriptor reader, writer;
};

/// Returns why no process can be made, with the limit.
std::string limit_of(int error) {
  if (error == EAGAIN)
    return concat(std::strerror(error), "; the user or the control group has as many processes as it may have: end ",
                  "others, or raise `ulimit -u` or pids.max");
  if (error == ENOMEM)
    return concat(std::strerror(error), "; free memory, or raise the memory limit of the control group");
  return std::strerror(error);
}

Descriptor without_waiting(Descriptor end) {
  fcntl(end.value(), F_SETFL, fcntl(end.value(), F_GETFL) | O_NONBLOCK);
  return end;
}

/// Blocks signals in this thread. A child has a copy of its memory or shares it, so no handler of this process may run
/// there.
class BlockedSignals {
 public:
  explicit BlockedSignals(const sigset_t& signals) { pthread_sigmask(SIG_BLOCK, &signals, &before_); }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

sigset_t all_signals() {
  sigset_t all;
  sigfillset(&all);
  return all;
}

/// A program to start. The child reads it before it becomes the program, so it holds everything that the child needs.
struct Start {
  std::vector<char*> words{}, environment{};
  int input = -1, output = -1, error = -1;  // become descriptors 0, 1 and 2; -1 = they stay
  pid_t group = -1;                         // to join; 0 = its own, -1 = it stays in this one
  bool dies_first = false;
  bool dies_with_parent = true;
  pid_t parent = getpid();
  int told = -1;  // takes the errno of a failure, and is closed by success
};

/// Runs in the child after vfork(), where only system calls are allowed.
[[noreturn]] void become(Start& start) {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action;
    const bool is_known = sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_DFL;
    if (!is_known || (signal == SIGHUP && action.sa_handler == SIG_IGN)) continue;
    action.sa_handler = SIG_DFL, action.sa_flags = 0;
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (start.group >= 0) setpgid(0, start.group);
  if (start.dies_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != start.parent) _exit(127);
  }
  if (start.dies_first) {
    const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    [[maybe_unused]] const auto written = score >= 0 ? write(score, "1000", 4) : 0;
  }
  if (start.input >= 0) dup2(start.input, STDIN_FILENO);
  if (start.output >= 0) dup2(start.output, STDOUT_FILENO);
  if (start.error >= 0) dup2(start.error, STDERR_FILENO);
  close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
  execvpe(start.words[0], start.words.data(), start.environment.data());
  const int failure = errno;
  [[maybe_unused]] const auto written = write(start.told, &failure, sizeof failure);
  _exit(127);
}

void collect(pid_t process) {
  while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) continue;
}

/// Starts a process without a copy of this one's memory: pages that this one changes while a copy has them would be
/// doubled, and reads of a disk into them may be lost.
pid_t started(Start& start) {
  Pipe told;
  start.told = told.writer.value();
  int failure = 0;
  pid_t process = 0;
  {
    const BlockedSignals blocked(all_signals());
    process = vfork();
    if (process == 0) become(start);
    failure = process < 0 ? errno : 0;
  }
  require(process > 0, "process", "no process can be made for ", start.words[0], ": ", limit_of(failure));
  told.writer = Descriptor();
  if (read(told.reader.value(), &failure, sizeof failure) != sizeof failure) failure = 0;
  if (failure != 0) collect(process);
  require(failure == 0, "process", "cannot start ", start.words[0], ": ", std::strerror(failure),
          "; give the name of a program in PATH, or the path of an executable file");
  return process;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Returns the environment of this process with these variables in place of those of the same name.
std::vector<std::string> environment_with(const std::vector<std::string>& variables) {
  std::vector<std::string> entries = variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view name(*entry, std::strcspn(*entry, "="));
    const auto is_it = [&](const std::string& own) { return own.substr(0, own.find('=')) == name; };
    if (std::none_of(variables.begin(), variables.end(), is_it)) entries.emplace_back(*entry);
  }
  return entries;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, Options options) {
  require(!command.empty(), "process", "a command must have at least one word: got none");
  if (options.has_own_group) start_guard();
  try {
    start(command, options);
  } catch (...) {
    if (guard_ > 0) ::kill(-guard_, SIGKILL), collect(guard_);
    throw;
  }
}

// The guard is the first process of the group, so that its id stays that of the group as long as this object lives.
void ChildProcess::start_guard() {
  Pipe life;
  std::vector<std::string> words{"/bin/sh", "-c", "read -r end; kill -s KILL -- -$$"}, environment;
  Start start{.words = pointers_to(words),
              .environment = pointers_to(environment),
              .input = life.reader.value(),
              .group = 0,
              .dies_with_parent = false};
  guard_ = started(start);
  life_ = std::move(life.writer);
}

void ChildProcess::start(const std::vector<std::string>& command, const Options& options) {
  std::vector<std::string> words = command, environment = environment_with(options.variables);
  Pipe input, output, error;
  Start start{.words = pointers_to(words),
              .environment = pointers_to(environment),
              .input = options.reads_input ? input.reader.value() : -1,
              .output = output.writer.value(),
              .error = error.writer.value(),
              .group = guard_ > 0 ? guard_ : -1,
              .dies_first = options.dies_first};
  process_ = started(start);
  if (options.reads_input) input_ = without_waiting(std::move(input.writer));
  output_ = without_waiting(std::move(output.reader));
  error_ = without_waiting(std::move(error.reader));
}

ChildProcess::~ChildProcess() {
  kill();
  if (!has_ended_) collect(process_);
  if (guard_ > 0) collect(guard_);
}

void ChildProcess::kill() {
  if (guard_ > 0)
    ::kill(-guard_, SIGKILL);
  else if (!has_ended_)
    ::kill(process_, SIGKILL);
}

void ChildProcess::write_from(std::string& text) {
  sigset_t broken;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  while (input_.is_open() && !text.empty()) {
    const BlockedSignals blocked(broken);
    const ssize_t count = write(input_.value(), text.data(), text.size());
    if (count > 0) text.erase(0, static_cast<size_t>(count));
    if (count > 0 || errno == EINTR) continue;
    if (errno == EAGAIN) return;
    close_input();
    const timespec now{};
    sigtimedwait(&broken, nullptr, &now);  // the signal of this write, which would end this process later
  }
}

bool ChildProcess::read_from(Descriptor& end, std::string& to) {
  if (!end.is_open()) return false;
  char buffer[1 << 16];
  ssize_t count = 0;
  while ((count = ::read(end.value(), buffer, sizeof buffer)) < 0 && errno == EINTR) continue;
  if (count > 0) to.append(buffer, static_cast<size_t>(count));
  if (count == 0 || (count < 0 && errno != EAGAIN)) end = Descriptor();
  return count > 0;
}

bool ChildProcess::read(std::string& output, std::string& error, int milliseconds) {
  pollfd ends[] = {{output_.value(), POLLIN, 0}, {error_.value(), POLLIN, 0}};  // poll() ignores closed ones
  if (poll(ends, 2, milliseconds) <= 0) return false;
  const bool has_output = read_output(output), has_error = read_error(error);
  return has_output || has_error;
}

bool ChildProcess::has_ended() {
  if (has_ended_) return true;
  int status = 0;
  const pid_t answer = waitpid(process_, &status, WNOHANG);
  if (answer == 0 || (answer < 0 && errno == EINTR)) return false;
  if (answer < 0) status = 127 << 8;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return has_ended_ = true;
}

bool ChildProcess::wait(double seconds) {
  const Stopwatch watch;
  while (!has_ended() && watch.seconds() < seconds) usleep(static_cast<useconds_t>(kCheck * 1e6));
  return has_ended_;
}

}  // namespace colossal
