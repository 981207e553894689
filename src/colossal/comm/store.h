// The key-value store through which ranks find each other: c10d's, so that torchrun's can be used as it is.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace c10d {
class Store;
}

namespace colossal::comm {

/// Thread safe; but a get() that waits holds up other calls through the same store of the TCP kind.
class Store {
 public:
  /// Among the threads of this process.
  static std::shared_ptr<Store> in_memory();
  /// Connects to the server at host:port, or is the server. A server listens on `listener`, a bound and listening
  /// socket, if given (it is taken over), else on `port`; 0 picks a free one. Errors: throws Error("launch", ...) when
  /// the port is taken or nobody answers within `limit`.
  struct Tcp {
    std::string host;
    uint16_t port = 0;
    bool server = false;
    int listener = -1;
    std::chrono::milliseconds limit{60000};
  };
  static std::shared_ptr<Store> tcp(const Tcp& options);

  Store(std::shared_ptr<c10d::Store> store, uint16_t port) : store_(std::move(store)), port_(port) {}

  /// The same store seen with every key behind `prefix`.
  std::shared_ptr<Store> with_prefix(const std::string& prefix) const;
  void set(const std::string& key, const std::string& value);
  /// Waits for the key. Errors: throws Error("launch", ...) after `limit`, saying `what` was waited for.
  std::string get(const std::string& key, std::chrono::milliseconds limit, const std::string& what);
  /// Does not wait.
  std::optional<std::string> find(const std::string& key);
  /// Adds to a counter that begins at 0; returns the sum.
  int64_t add(const std::string& key, int64_t amount);
  uint16_t port() const { return port_; }
  const std::shared_ptr<c10d::Store>& c10d_store() const { return store_; }

 private:
  std::shared_ptr<c10d::Store> store_;
  uint16_t port_;
};

}  // namespace colossal::comm
