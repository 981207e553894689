#include "colossal/comm/launch/local_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/comm/launch/process_settings.h"
#include "colossal/comm/seal.h"
#include "colossal/comm/store.h"

namespace colossal::comm {
namespace {

using Clock = std::chrono::steady_clock;

// time between a rank's end with an error and SIGTERM for the ranks that still run
constexpr std::chrono::milliseconds kTimeToAgree{500};

bool is_ignored(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// Receives signals through a descriptor during its lifetime, so that no code runs in a handler.
class SignalQueue {
 public:
  SignalQueue() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE}) sigaddset(&set, signal);
    if (!is_ignored(SIGHUP)) sigaddset(&set, SIGHUP);  // under nohup the signal is ignored and must stay so
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    descriptor_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    require(descriptor_ >= 0, "launch", "cannot watch signals: ", std::strerror(errno));
  }
  ~SignalQueue() {
    close(descriptor_);
    sigset_t broken_pipe;  // a report to a closed pipe raised it: it must not end this process now
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    const timespec at_once{};
    while (sigtimedwait(&broken_pipe, nullptr, &at_once) > 0) continue;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  const sigset_t& mask_before() const { return before_; }

  /// Returns the next signal, or 0 after `limit`.
  int wait(std::chrono::milliseconds limit) {
    pollfd entry{descriptor_, POLLIN, 0};
    poll(&entry, 1, static_cast<int>(limit.count()));
    signalfd_siginfo info{};
    return read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  int descriptor_;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

class LocalRun {
 public:
  explicit LocalRun(const LocalRanks& options) : options_(options), parent_(getpid()) {
    require(options.ranks >= 1, "launch", "the number of ranks must be at least 1: got ", options.ranks);
    const int most = std::max(128, 16 * static_cast<int>(std::thread::hardware_concurrency()));
    require(options.ranks <= most, "launch", "one host runs at most ", most, " ranks, 16 per core: got ", options.ranks,
            "; use more hosts or fewer ranks");
    require(!options.command.empty(), "launch", "a command is needed to start ranks");
    Store::Tcp tcp;
    tcp.host = "127.0.0.1";
    tcp.server = true;
    store_ = Store::tcp(tcp);
  }

  ~LocalRun() {
    for (const pid_t process : processes_) {
      if (process <= 0) continue;
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
    }
  }
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  int run() {
    const auto pass_on = [&](std::chrono::milliseconds limit) {
      const int signal = signals_.wait(limit);
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) forward(signal);
    };
    for (int r = 0; r < options_.ranks && !asked_to_end_; ++r) {
      start(r);
      pass_on(std::chrono::milliseconds(0));
    }
    while (alive() > 0) {
      pass_on(std::chrono::milliseconds(ending_ || failure_ ? 20 : 200));
      reap();
      if (ending_ && Clock::now() > *ending_ + options_.grace) send_all(SIGKILL);
    }
    return status_;
  }

 private:
  void start(int r) {
    Variables variables = process_variables();
    for (const auto& [name, value] : options_.variables) variables[name] = value;
    variables.merge(process_settings(variables));
    variables["COLOSSAL_RANK"] = std::to_string(r);
    variables["COLOSSAL_SIZE"] = std::to_string(options_.ranks);
    variables["COLOSSAL_STORE_HOST"] = "127.0.0.1";
    variables["COLOSSAL_STORE_PORT"] = std::to_string(store_->port());
    variables["COLOSSAL_STORE_HOSTED"] = "1";
    if (variables["COLOSSAL_SECRET"].empty()) variables["COLOSSAL_SECRET"] = secret_;
    std::vector<std::string> command = options_.command, environment;
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    const auto arguments = pointers(command), entries = pointers(environment);
    int told[2];  // closed by a successful exec, else carries errno
    const int no_pipe = pipe2(told, O_CLOEXEC) == 0 ? 0 : errno;
    require(no_pipe == 0, "launch", "cannot start rank ", r, ": ", std::strerror(no_pipe));
    const pid_t process = fork();
    if (process == 0) become(arguments, entries, told[1]);
    close(told[1]);
    int failure = process < 0 ? errno : 0;
    if (process > 0) {
      processes_.push_back(process);
      if (read(told[0], &failure, sizeof failure) != sizeof failure) failure = 0;
    }
    close(told[0]);
    require(failure == 0, "launch", "cannot start rank ", r, " as ", options_.command[0], ": ", std::strerror(failure),
            "; give the name of a program in PATH, or the path of an executable file");
  }

  /// Runs in the child and makes only calls that are safe between fork and exec.
  [[noreturn]] void become(const std::vector<char*>& arguments, const std::vector<char*>& entries, int told) {
    setpgid(0, 0);  // so that Ctrl-C reaches only the launcher, which forwards it once
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent_) _exit(127);  // the parent died in between
    sigprocmask(SIG_SETMASK, &signals_.mask_before(), nullptr);
    execvpe(arguments[0], arguments.data(), entries.data());
    const int failure = errno;
    [[maybe_unused]] const auto written = write(told, &failure, sizeof failure);
    _exit(127);
  }

  int alive() const {
    int count = 0;
    for (const pid_t process : processes_) count += process > 0;
    return count;
  }

  void send_all(int signal) {
    for (const pid_t process : processes_) {
      if (process > 0) kill(process, signal);
    }
  }

  void forward(int signal) {
    // The system and a shell may both report a lost terminal, so a repeated SIGHUP is ignored. Any other repeated
    // signal is intended.
    if (asked_to_end_ && signal == SIGHUP) return;
    if (!asked_to_end_)
      report(concat("got ", signal_name(signal), ", passing it on to the ranks"));
    else if (!ending_)
      ending_ = Clock::now();
    asked_to_end_ = true;
    send_all(signal);
  }

  /// After a signal to end, a rank may take the time it needs to save. Ranks that end sooner are no reason to shorten
  /// that time.
  bool is_orderly(int status) const {
    if (!WIFEXITED(status)) return false;
    const int code = WEXITSTATUS(status);
    return code == 0 || (asked_to_end_ && (code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP));
  }

  void reap() {
    for (size_t r = 0; r < processes_.size(); ++r) {
      int status = 0;
      if (processes_[r] <= 0 || waitpid(processes_[r], &status, WNOHANG) != processes_[r]) continue;
      const pid_t process = processes_[r];
      processes_[r] = 0;
      if (status_ == 0) status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (is_orderly(status) || ending_) continue;
      const std::string how = WIFSIGNALED(status) ? "was killed by " + signal_name(WTERMSIG(status))
                                                  : concat("ended with status ", WEXITSTATUS(status));
      const int killed_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      const bool is_wanted = asked_to_end_ && (killed_by == SIGINT || killed_by == SIGTERM || killed_by == SIGHUP);
      if (!failure_)
        failure_ =
            Failure{Clock::now(),
                    is_wanted ? "" : concat("rank ", r, " of ", options_.ranks, " (process ", process, ") ", how)};
      if (killed_by != 0 || alive() == 0) end_the_others();
    }
    // If all ranks refuse the same thing, one of them reports it for all. That rank must not be ended before its
    // report because another one was quicker.
    if (failure_ && !ending_ && Clock::now() > failure_->time + kTimeToAgree) end_the_others();
  }

  void end_the_others() {
    if (!failure_->what.empty()) report(failure_->what + (alive() > 0 ? "; ending the other ranks" : ""));
    ending_ = Clock::now();
    send_all(SIGTERM);
  }

  void report(const std::string& text) const {
    if (options_.report) options_.report(text);
  }

  const LocalRanks& options_;
  const pid_t parent_;
  SignalQueue signals_;
  std::shared_ptr<Store> store_;
  const std::string secret_ = random_text();
  std::vector<pid_t> processes_;  // 0 = the process has ended
  struct Failure {
    Clock::time_point time;
    std::string what;
  };
  std::optional<Failure> failure_;  // the first failure
  std::optional<Clock::time_point> ending_;
  bool asked_to_end_ = false;
  int status_ = 0;
};

}  // namespace

int run_local_ranks(const LocalRanks& options) { return LocalRun(options).run(); }

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : concat("signal ", signal);
}

}  // namespace colossal::comm
