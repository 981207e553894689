#include "colossal/comm/launch/local_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/comm/launch/process_settings.h"
#include "colossal/comm/launch/rank_processes.h"
#include "colossal/comm/launch/run_guard.h"
#include "colossal/comm/launch/terminal.h"
#include "colossal/comm/seal.h"
#include "colossal/comm/store.h"

namespace colossal::comm {
namespace {

using Clock = std::chrono::steady_clock;

// time between a rank's end with an error and SIGTERM for the ranks that still run; also the time in which processes
// that outlive the ranks may end by themselves
constexpr std::chrono::milliseconds kTimeToAgree{500};

/// Makes this process the parent of processes whose parents end, during its lifetime.
class Subreaper {
 public:
  Subreaper() {
    prctl(PR_GET_CHILD_SUBREAPER, &before_);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;

 private:
  int before_ = 0;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (auto& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

class LocalRun {
 public:
  explicit LocalRun(const LocalRanks& options)
      : options_(options), parent_(getpid()), secret_(secret_of(options)), guard_(checked_ranks(options), mark_) {
    Store::Tcp tcp;
    tcp.host = "127.0.0.1";
    tcp.server = true;
    store_ = Store::tcp(tcp);
    processes_.emplace(mark_, [this](size_t r) { return program_of(r); });
  }

  ~LocalRun() {
    if (!processes_) return;
    for (const RankProcess& rank : processes_->ranks()) {
      if (rank.is_over) continue;
      kill(-rank.group, SIGKILL);
      while (waitpid(-rank.group, nullptr, 0) > 0) continue;
      guard_.forget(rank.group);
    }
  }
  LocalRun(const LocalRun&) = delete;
  LocalRun& operator=(const LocalRun&) = delete;

  int run() {
    for (int r = 0; r < options_.ranks && !asked_to_end_; ++r) {
      start(r);
      take_signal(std::chrono::milliseconds(0));
    }
    while (processes_->any_first_runs() || has_rest()) {
      take_signal(std::chrono::milliseconds(ending_ || failure_ || rest_since_ ? 20 : 200));
      reap();
      if (ending_ && Clock::now() > *ending_ + options_.grace) {
        processes_->signal_groups(SIGKILL);
        for (const pid_t process : processes_->running()) kill(process, SIGKILL);
      }
    }
    return status_;
  }

 private:
  static int checked_ranks(const LocalRanks& options) {
    require(options.ranks >= 1, "launch", "the number of ranks must be at least 1: got ", options.ranks);
    const int most = std::max(128, 16 * static_cast<int>(std::thread::hardware_concurrency()));
    require(options.ranks <= most, "launch", "one host runs at most ", most, " ranks, 16 per core: got ", options.ranks,
            "; use more hosts or fewer ranks");
    require(!options.command.empty(), "launch", "a command is needed to start ranks");
    return options.ranks;
  }

  static std::string secret_of(const LocalRanks& options) {
    const auto own = options.variables.find("COLOSSAL_SECRET");
    if (own != options.variables.end() && !own->second.empty()) return own->second;
    const char* const inherited = std::getenv("COLOSSAL_SECRET");
    return own == options.variables.end() && inherited && *inherited ? inherited : random_text();
  }

  /// Returns the process that launch() in a rank has reported.
  std::optional<pid_t> program_of(size_t r) const {
    try {
      const auto process = store_->sealed(secret_, {})->find(concat("process/", r));
      return process ? std::optional<pid_t>(std::atoi(process->c_str())) : std::nullopt;
    } catch (const Error&) {
      return std::nullopt;  // signals must go out even if the store does not answer
    }
  }

  void start(int r) {
    Variables variables = process_variables();
    for (const auto& [name, value] : options_.variables) variables[name] = value;
    variables.merge(process_settings(variables));
    variables["COLOSSAL_RANK"] = std::to_string(r);
    variables["COLOSSAL_SIZE"] = std::to_string(options_.ranks);
    variables["COLOSSAL_STORE_HOST"] = "127.0.0.1";
    variables["COLOSSAL_STORE_PORT"] = std::to_string(store_->port());
    variables["COLOSSAL_STORE_HOSTED"] = "1";
    variables["COLOSSAL_SECRET"] = secret_;
    variables["COLOSSAL_RUN"] = run_;
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
      setpgid(process, process);  // the child does the same; whichever is first
      processes_->add(process);
      guard_.watch(process);
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

  void take_signal(std::chrono::milliseconds limit) {
    const int signal = signals_.wait(limit);
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) forward(signal, std::nullopt);
    if (signal == SIGTSTP) suspend(SIGTSTP);
  }

  void ask_all(int signal, std::optional<size_t> except = std::nullopt) {
    for (size_t r = 0; r < processes_->ranks().size(); ++r)
      if (r != except) processes_->ask(r, signal);
  }

  void forward(int signal, std::optional<size_t> except) {
    // The system and a shell may both report a lost terminal, so a repeated SIGHUP is ignored. Any other repeated
    // signal is intended.
    if (asked_to_end_ && signal == SIGHUP) return;
    if (!asked_to_end_)
      report(concat("got ", signal_name(signal), ", passing it on to the ranks"));
    else if (!ending_)
      ending_ = Clock::now();
    asked_to_end_ = true;
    ask_all(signal, except);
  }

  /// Stops the whole run together with this process, until a shell continues it.
  void suspend(int signal) {
    const pid_t holder = terminal_.holder();
    processes_->signal_groups(SIGTSTP);
    terminal_.take_back();
    signals_.stop_by(signal);
    if (holder != 0) terminal_.give_to(holder);  // unless the run goes on in the background
    processes_->signal_groups(SIGCONT);
  }

  /// A background process that reads the terminal or changes its modes is stopped. The rank then gets the terminal, and
  /// with it the signals of Ctrl-C and Ctrl-Z.
  void take_stop(const RankProcess& rank, int signal) {
    if (signal == SIGTSTP && terminal_.holder() == rank.group) suspend(SIGTSTP);
    if (signal != SIGTTIN && signal != SIGTTOU) return;
    if (!terminal_.give_to(rank.group)) suspend(signal);  // this run is itself in the background
    terminal_.give_to(rank.group);
    kill(-rank.group, SIGCONT);
  }

  /// After a signal to end, a rank may take the time it needs to save. Ranks that end sooner are no reason to shorten
  /// that time.
  bool is_orderly(int status) const {
    if (!WIFEXITED(status)) return false;
    const int code = WEXITSTATUS(status);
    return code == 0 || (asked_to_end_ && (code == 128 + SIGINT || code == 128 + SIGTERM || code == 128 + SIGHUP));
  }

  void reap() {
    for (size_t r = 0; r < processes_->ranks().size(); ++r) {
      RankProcess& rank = processes_->ranks()[r];
      int status = 0;
      pid_t process = 0;
      while (!rank.is_over && (process = waitpid(-rank.group, &status, WNOHANG | WUNTRACED)) > 0) {
        if (!WIFSTOPPED(status))
          take_end(r, process, status);
        else if (process == rank.group)
          take_stop(rank, WSTOPSIG(status));
      }
      if (process == 0 || rank.is_over) continue;
      rank.is_over = true;
      guard_.forget(rank.group);
      if (terminal_.holder() == rank.group) terminal_.take_back();
    }
    reap_orphans();
    // If all ranks refuse the same thing, one of them reports it for all. That rank must not be ended before its
    // report because another one was quicker.
    const bool is_time = failure_ && (Clock::now() > failure_->time + kTimeToAgree || !processes_->any_first_runs());
    if (is_time && !ending_) end_the_others();
  }

  /// Reads the status of ended processes that have left the groups of the ranks. They are children of this process
  /// because it is a subreaper, and would keep their ids until the end of the run.
  void reap_orphans() {
    const auto is_of_rank = [](const RankProcess& rank, pid_t group) { return !rank.is_over && rank.group == group; };
    for (siginfo_t ended{}; waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0;
         ended.si_pid = 0) {
      const std::vector<RankProcess>& ranks = processes_->ranks();
      const pid_t group = getpgid(ended.si_pid);
      if (std::any_of(ranks.begin(), ranks.end(), [&](const auto& rank) { return is_of_rank(rank, group); })) return;
      waitpid(ended.si_pid, nullptr, WNOHANG);
    }
  }

  void take_end(size_t r, pid_t process, int status) {
    RankProcess& rank = processes_->ranks()[r];
    const bool is_first = process == rank.group;
    if (!is_first && !rank.is_finishing) return;  // the first process has reported the rank's status, or will
    if (is_first) rank.first_runs = false;
    const int killed_by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const int code = killed_by ? 128 + killed_by : WEXITSTATUS(status);
    if (status_ == 0) status_ = code;
    if (is_first && terminal_.holder() == rank.group) {
      terminal_.take_back();
      if (code == 128 + SIGINT && !asked_to_end_) forward(SIGINT, r);  // Ctrl-C reached this rank alone
    }
    if (is_orderly(status) || ending_) return;
    const bool is_wanted = asked_to_end_ && (killed_by == SIGINT || killed_by == SIGTERM || killed_by == SIGHUP);
    if (is_wanted && kill(-rank.group, 0) == 0) rank.is_finishing = true;
    if (is_wanted && rank.is_finishing) return;
    const std::string how =
        killed_by ? "was killed by " + signal_name(killed_by) : concat("ended with status ", WEXITSTATUS(status));
    if (!failure_)
      failure_ = Failure{Clock::now(),
                         is_wanted ? "" : concat("rank ", r, " of ", options_.ranks, " (process ", process, ") ", how)};
    // A rank that the user's signal has ended is no reason to end one that acts on the same signal, so those that run
    // get time for it first.
    if (killed_by != 0 && !is_wanted) end_the_others();
  }

  void end_the_others() {
    if (!failure_->what.empty())
      report(failure_->what + (processes_->any_first_runs() ? "; ending the other ranks" : ""));
    ending_ = Clock::now();
    ask_all(SIGTERM);
  }

  /// Returns true if processes of the run are left after the first process of every rank has ended, and ends them. A
  /// process that the user's signal has asked to end may take its time.
  bool has_rest() {
    std::vector<pid_t> rest = processes_->running();
    if (rest.empty()) return processes_->alive() > 0;
    if (!rest_since_) rest_since_ = Clock::now();
    if (!ending_ && Clock::now() < *rest_since_ + kTimeToAgree) return true;
    std::erase_if(rest, [this](pid_t process) { return processes_->was_asked(process); });
    if (rest.empty()) return true;
    if (!rest_asked_) {
      if (!ending_) report("the ranks have ended, but processes that they started still run; ending them");
      for (const pid_t process : rest) kill(process, SIGTERM);
      rest_asked_ = Clock::now();
    } else if (Clock::now() > *rest_asked_ + options_.grace) {
      for (const pid_t process : rest) kill(process, SIGKILL);
    }
    return true;
  }

  void report(const std::string& text) const {
    if (options_.report) options_.report(text);
  }

  struct Failure {
    Clock::time_point time;
    std::string what;
  };

  const LocalRanks& options_;
  const pid_t parent_;
  const std::string secret_, run_ = random_text();
  const std::string mark_ = "COLOSSAL_RUN=" + run_;  // variable of all processes of this run
  const Subreaper subreaper_;
  SignalQueue signals_;
  const RunGuard guard_;
  Foreground terminal_;
  std::shared_ptr<Store> store_;
  std::optional<RankProcesses> processes_;
  std::optional<Failure> failure_;  // the first failure
  std::optional<Clock::time_point> ending_, rest_since_, rest_asked_;
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
