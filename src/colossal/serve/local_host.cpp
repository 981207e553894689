#include "colossal/serve/local_host.h"

#include <utility>

#include "colossal/comm/run_ranks.h"

namespace colossal::serve {

void LocalHost::start(std::function<void(comm::World&)> run) {
  thread_ = std::thread([this, run = std::move(run)] {
    std::exception_ptr error;
    try {
      comm::run_ranks(1, run);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    has_ended_ = true;
    changed_.notify_all();
  });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return loop_ || has_ended_; });
  if (loop_) return;
  const std::exception_ptr error = error_;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(error);
}

void LocalHost::set_loop(ReplicaLoop* loop) {
  const std::lock_guard lock(mutex_);
  loop_ = loop;
  changed_.notify_all();
}

void LocalHost::serve(ReplicaLoop& loop) {
  struct Opened {  // while the loop takes work
    Opened(LocalHost& host_, ReplicaLoop& loop) : host(host_) { host.set_loop(&loop); }
    ~Opened() { host.set_loop(nullptr); }
    LocalHost& host;
  } const opened(*this, loop);
  loop.run({});
}

std::optional<Ticket> LocalHost::give(const std::function<std::optional<Ticket>(ReplicaLoop&)>& add) {
  const std::lock_guard lock(mutex_);
  std::optional<Ticket> ticket;
  if (loop_) ticket = add(*loop_);
  if (!ticket && error_) std::rethrow_exception(error_);
  return ticket;
}

void LocalHost::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (loop_) loop_->cancel(ticket);
}

void LocalHost::close() {
  std::call_once(closed_, [this] {  // other threads that close wait here
    {
      const std::lock_guard lock(mutex_);
      if (loop_) loop_->end();
    }
    thread_.join();
  });
}

}  // namespace colossal::serve
