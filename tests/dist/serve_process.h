// `colossal serve` as a child process.
//
//   ServeProcess server({"--from", folder / "hf", "--tokenizer", "bytes"});
//   http::Client client({.url = server.url()});
//   server.send(SIGTERM);
//   EXPECT_EQ(server.finish().status, 0);
#pragma once
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/paths.h"
#include "support/process.h"

namespace colossal::test {

class ServeProcess {
 public:
  /// Starts the command with these arguments, on a free port of the CPU.
  explicit ServeProcess(std::vector<std::string> words) {
    words.insert(words.begin(), {program_path(), "serve"});
    words.insert(words.end(), {"--port", "0", "--run.device", "cpu"});
    Process process{.command = std::move(words), .limit = std::chrono::seconds(120)};
    process.meanwhile = [this](const std::string& output, int id) { look(output, id); };
    thread_ = std::thread([this, process] {
      const Finished finished = run_process(process);
      const std::lock_guard lock(mutex_);
      finished_ = finished;
      changed_.notify_all();
    });
  }
  ~ServeProcess() {
    send(SIGKILL);
    thread_.join();
  }
  ServeProcess(const ServeProcess&) = delete;
  ServeProcess& operator=(const ServeProcess&) = delete;

  /// Waits until the output has `text`. Returns false if the process has ended without it.
  bool prints(const std::string& text) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ || output_.find(text) != std::string::npos; });
    return output_.find(text) != std::string::npos;
  }
  /// Waits for the ready line and returns its address; "" if the process has ended without one.
  std::string url() {
    const std::string begin = "colossal: ready at ";
    if (!prints(begin) || !prints(" rank")) return "";
    const std::lock_guard lock(mutex_);
    const size_t at = output_.find(begin) + begin.size();
    return output_.substr(at, output_.find(": ", at) - at);
  }
  /// Waits until the command, or its first rank, has come to a point in its start. `reached` gets the number of a
  /// process; it is called often. Returns false if the command has printed something or has ended before.
  bool reaches(const std::function<bool(int)>& reached) {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (finished_ || !output_.empty()) return false;
        if (id_ > 0 && reached(id_)) return true;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  /// Sends a signal to the command, unless it has ended.
  void send(int signal) {
    const std::lock_guard lock(mutex_);
    if (!finished_ && id_ > 0) kill(id_, signal);
  }
  /// Returns the process of a rank, for a command with several ranks.
  int rank(size_t index) {
    const std::lock_guard lock(mutex_);
    return children_of(id_).at(index);
  }
  /// Waits for the end of the process.
  Finished finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return finished_.has_value(); });
    return *finished_;
  }

 private:
  void look(const std::string& output, int id) {
    const std::lock_guard lock(mutex_);
    id_ = id;
    if (output.size() == output_.size()) return;
    output_ = output;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::string output_;
  int id_ = 0;
  std::optional<Finished> finished_;
  std::thread thread_;
};

}  // namespace colossal::test
