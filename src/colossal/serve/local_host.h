// The thread of a model in this process, to which programs give work from any thread.
//
//   LocalHost host;
//   host.start([&](comm::World& world) { ...; host.serve(loop); });  // loads the model; returns once it takes work
//   const auto ticket = host.give([&](ReplicaLoop& loop) { return loop.draw(std::move(job)); });
//   host.close();
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "colossal/comm/world.h"
#include "colossal/serve/replica.h"

namespace colossal::serve {

/// Thread safety: after start() any thread may call the members, but for serve(). None of them waits for a step, except
/// close(). Call close() before the destruction of what `run` uses.
class LocalHost {
 public:
  /// Calls `run` on a thread of its own, in a world of one rank. Waits until `run` calls serve().
  /// Errors: those of `run` before that.
  void start(std::function<void(comm::World&)> run);
  /// Runs the loop until close(). Only `run` calls it, once.
  void serve(ReplicaLoop& loop);

  /// Returns what `add` returns for the loop; nothing after close(). Errors: the one with which the loop has ended.
  std::optional<Ticket> give(const std::function<std::optional<Ticket>(ReplicaLoop&)>& add);
  void cancel(Ticket ticket);
  /// Ends the loop and waits until the thread has ended.
  void close();

 private:
  void set_loop(ReplicaLoop* loop);

  std::thread thread_;
  std::once_flag closed_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  ReplicaLoop* loop_ = nullptr;  // null = the model is not loaded yet, or the loop has ended
  bool has_ended_ = false;
  std::exception_ptr error_;
};

}  // namespace colossal::serve
