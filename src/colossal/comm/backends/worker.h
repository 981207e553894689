// A thread that runs tasks in the order they were given, so that large collectives overlap with computation; and the
// calls that such tasks keep.
#pragma once
#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "colossal/comm/call.h"
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

/// A Call that stays valid after issue() has returned, because it owns references to its tensors and copies of its row
/// counts. Copies refer to the same tensors.
/// Cost: a reference count for each tensor.
class KeptCall {
 public:
  explicit KeptCall(const Call& call)
      : call_(call),
        out_(call.out ? *call.out : at::Tensor()),
        in_(call.in ? *call.in : at::Tensor()),
        out_rows_(call.out_rows.begin(), call.out_rows.end()),
        in_rows_(call.in_rows.begin(), call.in_rows.end()) {}

  /// Returns a Call that refers to this object, which must outlive it.
  Call call() const {
    Call call = call_;
    if (call_.out) call.out = &out_;
    if (call_.in) call.in = call_.in == call_.out ? &out_ : &in_;
    call.out_rows = out_rows_;
    call.in_rows = in_rows_;
    return call;
  }

 private:
  Call call_;
  at::Tensor out_, in_;
  std::vector<int64_t> out_rows_, in_rows_;
};

}  // namespace colossal::comm
