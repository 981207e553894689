#include "colossal/http/worker_pool.h"

#include <algorithm>
#include <utility>

namespace colossal::http {

void WorkerPool::Turns::push(const std::string& client, Task task) {
  std::deque<Task>& own = tasks_[client];
  if (own.empty()) order_.push_back(client);
  own.push_back(std::move(task));
}

WorkerPool::Task WorkerPool::Turns::pop() {
  const auto own = tasks_.find(order_.front());
  order_.pop_front();
  Task task = std::move(own->second.front());
  own->second.pop_front();
  if (own->second.empty())
    tasks_.erase(own);
  else
    order_.push_back(own->first);
  return task;
}

WorkerPool::WorkerPool(int64_t threads) : max_large_(std::max<int64_t>(threads - 1, 1)) {
  for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkerPool::~WorkerPool() { stop(); }

void WorkerPool::post(Task task, const TaskKind& kind) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    (kind.is_large ? large_ : others_).push(kind.client, std::move(task));
  }
  changed_.notify_one();
}

void WorkerPool::stop() {
  Turns large, others;  // destroyed without the lock, because a task may own what posts again
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    std::swap(large, large_);
    std::swap(others, others_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerPool::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopped_ || !others_.is_empty() || may_run_large(); });
    if (is_stopped_) return;
    const bool is_large = may_run_large() && (others_.is_empty() || !was_large_);
    Task task = (is_large ? large_ : others_).pop();
    was_large_ = is_large;
    large_running_ += is_large;
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
    large_running_ -= is_large;
    // The thread that post() woke may have found that too many large tasks ran.
    if (is_large && !large_.is_empty()) changed_.notify_one();
  }
}

}  // namespace colossal::http
