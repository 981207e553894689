// A thread that runs tasks in the order they were given, so that large collectives overlap with computation.
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

/// Size limit in bytes: calls of at most this size are faster in the calling thread than on another one.
inline constexpr int64_t kInlineBytes = 64 << 10;

/// The thread starts with the first task. The destructor finishes all submitted tasks.
class Worker {
 public:
  Worker() = default;
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Submits a task; wait() of the result rethrows an exception of the task.
  Work submit(std::function<void()> task);
  /// Returns true if no task is queued or running.
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
