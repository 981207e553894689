#include "colossal/comm/launch/run_guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

/// The data of the guard. It gets its memory before the fork, because the launcher may have other threads: afterwards
/// only calls are allowed that are safe in a signal handler.
struct Watch {
  std::vector<pid_t> groups;
  std::string variable;
  std::vector<char> environment;
};

/// Returns a process id, or 0 if the name in /proc is none.
pid_t process_of(const char* name) {
  pid_t process = 0;
  for (; *name >= '0' && *name <= '9'; ++name) process = 10 * process + (*name - '0');
  return *name == 0 ? process : 0;
}

bool is_of_run(int proc, const char* name, Watch& watch) {
  char path[300];
  std::strcpy(path, name);
  std::strcat(path, "/environ");
  const int file = openat(proc, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  size_t size = 0;
  for (ssize_t got; size < watch.environment.size() &&
                    (got = read(file, watch.environment.data() + size, watch.environment.size() - size)) > 0;)
    size += static_cast<size_t>(got);
  close(file);
  return memmem(watch.environment.data(), size, watch.variable.data(), watch.variable.size()) != nullptr;
}

/// Kills the processes that have left their groups. Returns true if there was one, which may have started others.
bool kill_the_rest(Watch& watch) {
  bool has_killed = false;
  const int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  alignas(dirent64) char entries[8192];
  for (long bytes; proc >= 0 && (bytes = syscall(SYS_getdents64, proc, entries, sizeof entries)) > 0;) {
    for (long at = 0; at < bytes;) {
      const auto* const entry = reinterpret_cast<const dirent64*>(entries + at);
      at += entry->d_reclen;
      const pid_t process = process_of(entry->d_name);
      if (process == 0 || process == getpid() || getsid(process) != getsid(0)) continue;
      if (is_of_run(proc, entry->d_name, watch)) has_killed |= kill(process, SIGKILL) == 0;
    }
  }
  if (proc >= 0) close(proc);
  return has_killed;
}

[[noreturn]] void watch_launcher(int orders, Watch& watch) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  setpgid(0, 0);
  prctl(PR_SET_NAME, "colossal-guard");
  // An open copy of the launcher's output, or of the port of its store, would make others wait for this process.
  if (orders > 0) close_range(0, static_cast<unsigned>(orders) - 1, 0);
  close_range(static_cast<unsigned>(orders) + 1, ~0u, 0);
  for (pid_t order; read(orders, &order, sizeof order) == sizeof order;) {
    const auto known = std::find(watch.groups.begin(), watch.groups.end(), -order);
    if (order > 0)
      watch.groups.push_back(order);
    else if (known != watch.groups.end())
      watch.groups.erase(known);
  }
  if (watch.groups.empty()) _exit(0);
  for (const pid_t group : watch.groups) kill(-group, SIGKILL);
  for (int pass = 0; pass < 10 && kill_the_rest(watch); ++pass) continue;
  _exit(0);
}

void send(int descriptor, pid_t order) {
  // A killed guard has closed the pipe. The launcher blocks SIGPIPE, and the ranks do not depend on the guard.
  [[maybe_unused]] const auto written = write(descriptor, &order, sizeof order);
}

}  // namespace

RunGuard::RunGuard(int groups, const std::string& variable) {
  Watch watch{.groups = {}, .variable = variable, .environment = std::vector<char>(1 << 20)};
  watch.groups.reserve(static_cast<size_t>(groups));
  int ends[2];
  require(pipe2(ends, O_CLOEXEC) == 0, "launch", "cannot make a pipe: ", std::strerror(errno));
  process_ = fork();
  const int failure = errno;
  if (process_ == 0) {
    close(ends[1]);
    watch_launcher(ends[0], watch);
  }
  close(ends[0]);
  orders_ = ends[1];
  if (process_ > 0) return;
  close(orders_);
  throw Error("launch", concat("cannot start the guard of the ranks: ", std::strerror(failure)));
}

RunGuard::~RunGuard() {
  close(orders_);
  waitpid(process_, nullptr, 0);
}

void RunGuard::watch(pid_t group) const { send(orders_, group); }
void RunGuard::forget(pid_t group) const { send(orders_, -group); }

}  // namespace colossal::comm
