#include "support/process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace colossal::test {
namespace {

using Clock = std::chrono::steady_clock;

class Child {
 public:
  explicit Child(const Process& process) : process_(process), start_(Clock::now()) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    id_ = fork();
    if (id_ == 0) become(ends[1]);
    close(ends[1]);
    output_ = ends[0];
    fcntl(output_, F_SETFL, O_NONBLOCK);
  }

  /// Reads output, checks the limit, and returns true if the process has ended.
  bool look() {
    if (ended_) return true;
    drain();
    if (process_.meanwhile) process_.meanwhile(result_.output, id_);
    if (!result_.late && Clock::now() > start_ + process_.limit) {
      result_.late = true;
      kill(-id_, SIGKILL);
    }
    int status = 0;
    if (waitpid(id_, &status, WNOHANG) != id_) return false;
    ended_ = true;
    result_.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    result_.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    drain();
    close(output_);
    return true;
  }

  const Finished& result() const { return result_; }

 private:
  [[noreturn]] void become(int output) {
    setpgid(0, 0);
    for (const int signal : {SIGINT, SIGHUP}) ::signal(signal, SIG_DFL);  // the parent may ignore them
    dup2(output, 1);
    dup2(output, 2);
    for (const auto& [name, value] : process_.variables) {
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    }
    std::vector<std::string> texts = process_.command;
    std::vector<char*> arguments;
    for (auto& text : texts) arguments.push_back(text.data());
    arguments.push_back(nullptr);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }

  void drain() {
    char buffer[4096];
    for (ssize_t count; (count = read(output_, buffer, sizeof buffer)) > 0;) result_.output.append(buffer, count);
  }

  const Process& process_;
  const Clock::time_point start_;
  pid_t id_ = 0;
  int output_ = -1;
  bool ended_ = false;
  Finished result_;
};

/// A socket and the loopback address with a port; port 0 = any free port.
class Loopback {
 public:
  explicit Loopback(int port) : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address_.sin_port = htons(static_cast<uint16_t>(port));
  }
  ~Loopback() { close(descriptor_); }
  bool reaches() { return connect(descriptor_, address(), sizeof address_) == 0; }
  int bound_port() {
    socklen_t length = sizeof address_;
    if (bind(descriptor_, address(), length) != 0) throw std::runtime_error("no port");
    getsockname(descriptor_, address(), &length);
    return ntohs(address_.sin_port);
  }

 private:
  sockaddr* address() { return reinterpret_cast<sockaddr*>(&address_); }
  const int descriptor_;
  sockaddr_in address_{};
};

}  // namespace

std::vector<Finished> run_processes(const std::vector<Process>& processes) {
  std::vector<Child> children;
  children.reserve(processes.size());
  for (const auto& process : processes) children.emplace_back(process);
  for (bool all_ended = false; !all_ended;) {
    all_ended = true;
    for (auto& child : children) all_ended &= child.look();
    if (!all_ended) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::vector<Finished> results;
  for (const auto& child : children) results.push_back(child.result());
  return results;
}

Finished run_process(const Process& process) { return run_processes({process})[0]; }

std::vector<int> children_of(int parent) {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string line, state;
    std::getline(stat, line);
    std::istringstream behind_the_name(line.substr(line.rfind(')') + 1));
    int its_parent = 0;
    behind_the_name >> state >> its_parent;
    const bool is_guard = line.find("(colossal-guard)") != std::string::npos;
    if (its_parent == parent && !is_guard) found.push_back(std::stoi(name));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<std::string> mapped_files(int process) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/maps");
  std::set<std::string> files;
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos) files.insert(line.substr(path));
  }
  return {files.begin(), files.end()};
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  const std::string folders = path ? path : "";
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string file = folders.substr(begin, end - begin) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
    begin = end + 1;
  }
  return "";
}

int free_port() { return Loopback(0).bound_port(); }
bool is_listening(int port) { return Loopback(port).reaches(); }

}  // namespace colossal::test
