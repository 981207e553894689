// The part of a server that has the sockets, without the types of its networking library. Bytes become requests in
// http/request_input.h.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/http/exchange_state.h"
#include "colossal/http/server.h"
#include "colossal/http/worker_pool.h"

namespace colossal::http {

/// The objects that the sockets and the server share.
struct ServerCore {
  ServerOptions options;
  std::vector<Route> routes;
  Admission admission;
  ExchangePools pools;
  std::atomic<bool> is_draining{false};
  std::atomic<int64_t> running{0}, connections{0};
  std::mutex mutex{};
  std::condition_variable has_changed{};  ///< notified after `running` or `connections` has changed

  /// A request has ended: reports it and counts it.
  void ended(const RequestEnd& end) {
    if (options.on_end) options.on_end(end);
    --running;
    changed();
  }
  /// Wakes threads that wait for a count. Called after the count was changed.
  void changed() {
    {
      const std::lock_guard lock(mutex);
    }  // a thread that has seen the old count sleeps now
    has_changed.notify_all();
  }
};

/// A listening socket, its connections and the thread that serves them.
class Sockets {
 public:
  virtual ~Sockets() = default;
  virtual void start() = 0;  ///< begins the I/O thread
  virtual std::string address() const = 0;
  virtual int64_t port() const = 0;
  /// Ends accepting and idle connections, and ends running answers with an error. Does not wait.
  virtual void begin_stop() = 0;
  /// Closes all connections. Does not wait.
  virtual void close_all() = 0;
  /// Ends the thread. Called after close_all() and after the workers have stopped.
  virtual void join() = 0;
};

/// Listens. `core` must outlive the result. Errors ("serve"): as Server's constructor.
std::unique_ptr<Sockets> make_sockets(ServerCore& core);

}  // namespace colossal::http
