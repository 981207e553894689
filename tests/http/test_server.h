// A server with the routes that tests need.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "colossal/http/server.h"
#include "http/raw_connection.h"

namespace colossal::http_test {

/// A value that one thread sets and another waits for.
template <class Value>
class Slot {
 public:
  void set(Value value) {
    {
      const std::lock_guard lock(mutex_);
      value_ = std::move(value);
    }
    changed_.notify_all();
  }
  /// Returns the value, or nothing if none arrives within the patience of the tests.
  std::optional<Value> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [this] { return value_.has_value(); });
    return value_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    value_.reset();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Value> value_;
};

inline std::string get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}

inline std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

/// GET /health: ok; open without a key. GET /hold, POST /hold: the exchange is given to `held`. POST /echo: the body.
/// GET /name/*: the name. GET /wait: no answer, after `go_on`. GET /throw: an exception. GET /drop: no answer.
class TestServer {
 public:
  explicit TestServer(http::ServerOptions options = {}) : server_(with_port(std::move(options)), routes()) {}

  http::Server& operator*() { return server_; }
  http::Server* operator->() { return &server_; }
  int64_t port() const { return server_.port(); }
  /// Sends bytes on a new connection and returns the whole answer, after which the server closes.
  std::string answer_to(const std::string& bytes) {
    RawConnection client(port());
    client.send(bytes);
    return client.receive_all();
  }
  /// Waits for a count of the server to become `count`.
  template <class Count>
  bool reaches(const Count& current, int64_t count) {
    for (int i = 0; i < kPatienceMs && current() != count; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return current() == count;
  }
  bool has_connections(int64_t count) {
    return reaches([this] { return server_.connections(); }, count);
  }

  Slot<std::shared_ptr<http::Exchange>> held;
  Slot<http::Gone> gone;
  Slot<bool> go_on;  ///< ends the handlers of /wait

 private:
  static http::ServerOptions with_port(http::ServerOptions options) {
    options.port = 0;
    return options;
  }
  std::vector<http::Route> routes() {
    using http::Exchange, http::Request;
    const auto hold = [this](const Request&, Exchange exchange) {
      exchange.when_gone([this](http::Gone why) { gone.set(why); });
      held.set(std::make_shared<Exchange>(std::move(exchange)));
    };
    return {
        {"GET", "/health", [](const Request&, Exchange exchange) { exchange.answer({.body = "ok"}); }, false, true,
         true},
        {"GET", "/hold", hold},
        {"POST", "/hold", hold},
        {"POST", "/echo", [](const Request& request, Exchange exchange) { exchange.answer({.body = request.body}); }},
        {"GET", "/name/*", [](const Request& request, Exchange exchange) { exchange.answer({.body = request.rest}); }},
        {"GET", "/wait", [this](const Request&, Exchange) { go_on.wait(); }},
        {"GET", "/throw", [](const Request&, Exchange) { throw std::runtime_error("broken: /srv/models/x.bin"); }},
        {"GET", "/drop", [](const Request&, Exchange) {}},
        {"GET", "/key",
         [](const Request& request, Exchange exchange) { exchange.answer({.body = std::to_string(request.key)}); }},
    };
  }
  http::Server server_;
};

}  // namespace colossal::http_test
