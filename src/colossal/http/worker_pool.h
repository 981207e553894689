// Threads that run tasks of clients in turns.
//
//   WorkerPool pool(2);
//   pool.post([] { ... });
//   pool.post([] { ... }, {.client = "key 1", .is_large = true});
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace colossal::http {

struct TaskKind {
  std::string client{};   ///< clients take turns, so that many tasks of one do not delay those of another
  bool is_large = false;  ///< the task may take seconds
};

/// Runs the tasks of one client in their order, and one task of each client in turn. Large tasks leave one thread for
/// the others, unless the pool has one thread only; there large and other tasks alternate.
/// Thread safety: any thread may call post(). Tasks must not throw.
class WorkerPool {
 public:
  using Task = std::function<void()>;

  explicit WorkerPool(int64_t threads);
  ~WorkerPool();  ///< calls stop()
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Queues a task, or drops it after stop().
  void post(Task task, const TaskKind& kind = {});
  /// Waits for running tasks, drops queued ones and joins the threads. One thread calls it, not a worker.
  void stop();

 private:
  /// Queued tasks by client. The first client has the next turn.
  class Turns {
   public:
    void push(const std::string& client, Task task);
    Task pop();
    bool is_empty() const { return order_.empty(); }

   private:
    std::map<std::string, std::deque<Task>> tasks_;
    std::deque<std::string> order_;  // clients with tasks
  };
  void run();
  bool may_run_large() const { return !large_.is_empty() && large_running_ < max_large_; }

  std::mutex mutex_;
  std::condition_variable changed_;
  Turns large_, others_;
  const int64_t max_large_;  // large tasks that run at a time
  int64_t large_running_ = 0;
  bool was_large_ = false;  // the last task that began
  bool is_stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace colossal::http
