// Threads that run tasks in the order in which they were posted.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace colossal::http {

/// Thread safety: any thread may call post(). Tasks must not throw.
class WorkerPool {
 public:
  explicit WorkerPool(int64_t threads);
  ~WorkerPool();  ///< calls stop()
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Queues a task, or drops it after stop().
  void post(std::function<void()> task);
  /// Waits for running tasks, drops queued ones and joins the threads. One thread calls it, not a worker.
  void stop();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool is_stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace colossal::http
