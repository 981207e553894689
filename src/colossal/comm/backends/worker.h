// A thread that runs tasks in the order they were given: what makes large collectives overlap with computing.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "colossal/comm/group.h"

namespace colossal::comm {

/// Calls whose tensors are at most that large are quicker made in the calling thread than handed to another one.
inline constexpr int64_t kInlineBytes = 64 << 10;

/// The thread starts with the first task. Destruction finishes what was submitted.
class Worker {
 public:
  Worker() = default;
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// wait() of the result rethrows what the task threw.
  Work submit(std::function<void()> task);
  /// Nothing queued and nothing running.
  bool idle() const;

 private:
  class Task;
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> queue_;  // the front one is running
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace colossal::comm
