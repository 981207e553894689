#include "support/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace colossal::test {

Process::Process(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  id_ = fork();
  if (id_ == 0) {
    setpgid(0, 0);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    execvp(words[0], words.data());
    _exit(127);
  }
  setpgid(id_, id_);
  close(ends[1]);
  pipe_ = ends[0];
}

Process::~Process() {
  if (!ended_) {
    kill(-id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  close(pipe_);
}

bool Process::read_some(std::chrono::milliseconds limit) {
  pollfd watched{pipe_, POLLIN, 0};
  if (poll(&watched, 1, static_cast<int>(limit.count())) <= 0) return true;
  char buffer[4096];
  const ssize_t count = read(pipe_, buffer, sizeof buffer);
  if (count <= 0) return false;
  outcome_.output.append(buffer, static_cast<size_t>(count));
  return true;
}

bool Process::wait_for(const std::string& text, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (std::chrono::steady_clock::now() < end) {
    if (outcome_.output.find(text) != std::string::npos) return true;
    if (!read_some(std::chrono::milliseconds(50))) break;
  }
  return outcome_.output.find(text) != std::string::npos;
}

Outcome Process::wait(std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  bool open = true;
  while (open && std::chrono::steady_clock::now() < end) open = read_some(std::chrono::milliseconds(50));
  if (open) kill(-id_, SIGKILL);
  int status = 0;
  waitpid(id_, &status, 0);
  ended_ = true;
  outcome_.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  outcome_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
  return outcome_;
}

void Process::signal(int number) { kill(id_, number); }

std::vector<pid_t> Process::children() const {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string line;
    std::getline(stat, line);
    std::istringstream rest(line.substr(line.rfind(')') + 1));
    std::string state;
    pid_t parent = 0;
    rest >> state >> parent;
    if (parent == id_) found.push_back(std::stoi(name));
  }
  return found;
}

Outcome run_process(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables,
                    std::chrono::seconds limit) {
  return Process(command, variables).wait(limit);
}

}  // namespace colossal::test
