// A program in a pseudo-terminal.
//
//   Terminal terminal({"sh", "-c", "read line; echo got $line"});
//   terminal.type("a\n");
//   EXPECT_TRUE(terminal.shows("got a"));
//   EXPECT_EQ(terminal.finish(), 0);
#pragma once
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace colossal::test {

constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kCtrlZ = "\x1a";

class Terminal {
 public:
  /// Starts the program as the leader of a session, whose controlling terminal this is.
  explicit Terminal(std::vector<std::string> words, const std::map<std::string, std::string>& variables = {}) {
    std::vector<char*> arguments;
    for (auto& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (process_ != 0) return;
    for (const int signal : {SIGINT, SIGHUP, SIGTSTP}) ::signal(signal, SIG_DFL);
    for (const auto& [name, value] : variables)
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  /// Closes the terminal.
  ~Terminal() {
    if (process_ > 0) kill(process_, SIGKILL);
    close(terminal_);
    if (process_ > 0) waitpid(process_, nullptr, 0);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) {
    [[maybe_unused]] const auto written = write(terminal_, keys.data(), keys.size());
  }
  /// Waits for a text after those that shows() has found before. Returns false at the end of the output or after 20 s.
  bool shows(const std::string& text) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (output_.find(text, seen_) == std::string::npos)
      if (std::chrono::steady_clock::now() > limit || !read_more()) return false;
    seen_ = output_.find(text, seen_) + text.size();
    return true;
  }
  /// Waits for the end of the program and returns its exit status, or 128 + signal; -1 = it still ran after 20 s.
  int finish() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (int status = 0; std::chrono::steady_clock::now() < limit; read_more()) {
      if (waitpid(process_, &status, WNOHANG) != process_) continue;
      process_ = 0;
      return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    return -1;
  }
  int process() const { return process_; }
  const std::string& output() const { return output_; }

 private:
  bool read_more() {
    pollfd wanted{terminal_, POLLIN, 0};
    if (poll(&wanted, 1, 20) <= 0) return true;
    char buffer[4096];
    const ssize_t count = read(terminal_, buffer, sizeof buffer);
    if (count > 0) output_.append(buffer, static_cast<size_t>(count));
    if (count <= 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));  // for the loop of finish()
    return count > 0;
  }

  int terminal_ = -1;
  pid_t process_ = 0;
  std::string output_;
  size_t seen_ = 0;
};

}  // namespace colossal::test
