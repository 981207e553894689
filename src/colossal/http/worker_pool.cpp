#include "colossal/http/worker_pool.h"

#include <utility>

namespace colossal::http {

WorkerPool::WorkerPool(int64_t threads) {
  for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void WorkerPool::stop() {
  std::deque<std::function<void()>> dropped;  // destroyed without the lock, because a task may own what posts again
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    dropped.swap(tasks_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerPool::run() {
  while (true) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_stopped_ || !tasks_.empty(); });
      if (is_stopped_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace colossal::http
