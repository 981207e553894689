#include "colossal/comm/backends/worker.h"

#include <exception>

namespace colossal::comm {

class Worker::Task : public Work::State {
 public:
  explicit Task(std::function<void()> function) : function_(std::move(function)) {}

  void run() {
    try {
      function_();
    } catch (...) {
      failure_ = std::current_exception();
    }
    function_ = nullptr;  // releases its tensors before the waiters are notified
  }

  void finish() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }

  void wait() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
    if (failure_) std::rethrow_exception(failure_);
  }

  bool done() override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

 private:
  std::function<void()> function_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
  bool done_ = false;
};

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Work Worker::submit(std::function<void()> function) {
  auto task = std::make_shared<Task>(std::move(function));
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(task);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
  return Work(std::move(task));
}

bool Worker::idle() const {
  const std::lock_guard lock(mutex_);
  return queue_.empty();
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto task = queue_.front();
    lock.unlock();
    task->run();
    lock.lock();
    queue_.pop_front();  // before finish(), because a thread that waited for this task must find the worker idle
    task->finish();
  }
}

}  // namespace colossal::comm
