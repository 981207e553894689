// A real process under test: started, watched, signalled, its output kept.
#pragma once
#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace colossal::test {

struct Outcome {
  int status = -1;      ///< exit status, or 128 + signal
  std::string output;   ///< stdout and stderr as they came
  double seconds = 0;
};

/// Starts `command` in a process group of its own. The destructor kills what is left of the group.
class Process {
 public:
  explicit Process(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  /// Reads output until it contains `text`; false when it ended or `limit` passed before.
  bool wait_for(const std::string& text, std::chrono::seconds limit);
  /// Output until the end. Kills the group when `limit` passes (status 128 + 9).
  Outcome wait(std::chrono::seconds limit = std::chrono::seconds(120));
  void signal(int number);
  /// Processes started by this one that still run.
  std::vector<pid_t> children() const;

 private:
  bool read_some(std::chrono::milliseconds limit);
  pid_t id_ = -1;
  int pipe_ = -1;
  bool ended_ = false;
  Outcome outcome_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

Outcome run_process(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables = {},
                    std::chrono::seconds limit = std::chrono::seconds(120));

}  // namespace colossal::test
