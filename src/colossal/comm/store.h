// The key-value store through which ranks find each other. It is c10d's, so that torchrun's store works unchanged.
//
//   auto store = comm::Store::tcp({.host = "10.0.0.1", .port = 29500, .server = rank == 0})->sealed(secret, note);
//   store->set(concat("address/", rank), own_address);
//   const std::string peer = store->get("address/1", std::chrono::seconds(60), "the address of rank 1");
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace colossal::comm {

/// A key-value store. Any process that reaches the port of a server can read and write everything in it: see sealed().
///
/// Thread safe, but a waiting get() delays other calls through the same store of the TCP kind.
/// Errors: if a server does not answer within Tcp::limit (at least ten seconds), e.g. because it is stopped, every call
///         throws Error("launch", ...), and later calls throw at once.
class Store {
 public:
  /// Returns a store among the threads of this process.
  static std::shared_ptr<Store> in_memory();
  /// Connects to the server at host:port, or is the server. A server listens on `port`; 0 picks a free one. If `host`
  /// is a loopback address ("127.0.0.1", "::1", "localhost"), the server listens only there, else on all interfaces.
  /// Errors: throws Error("launch", ...) if the port is taken or no server answers within `limit`.
  struct Tcp {
    std::string host;
    uint16_t port = 0;
    bool server = false;
    std::chrono::milliseconds limit{60000};
  };
  static std::shared_ptr<Store> tcp(const Tcp& options);

  /// Returns a store over the same data that signs its values (not its counters) with `secret`. A value that was
  /// written without the secret counts as missing. `note` is called once, for the first such value; it may be empty.
  std::shared_ptr<Store> sealed(const std::string& secret, std::function<void(const std::string&)> note) const;
  /// Returns a store over the same data that puts `prefix` before every key.
  std::shared_ptr<Store> with_prefix(const std::string& prefix) const;
  void set(const std::string& key, const std::string& value);
  /// Waits for the key. Errors: throws Error("launch", ...) after `limit`, saying `what` was waited for, and whether
  /// there was a value without the run's secret.
  std::string get(const std::string& key, std::chrono::milliseconds limit, const std::string& what);
  /// Waits for all keys, with the rules of get(), in a few requests for any number of keys.
  std::vector<std::string> get_all(const std::vector<std::string>& keys, std::chrono::milliseconds limit,
                                   const std::string& what);
  /// Returns the value of the key, or nothing if it is missing, without waiting.
  std::optional<std::string> find(const std::string& key);
  /// Returns true if the key has a value, sealed or not; does not wait.
  bool holds(const std::string& key);
  /// Adds to a counter that starts at 0; returns the sum.
  int64_t add(const std::string& key, int64_t amount);
  uint16_t port() const { return port_; }
  /// Returns the underlying store for libraries that use it directly; they ignore the seal.
  const std::shared_ptr<c10d::Store>& c10d_store() const { return store_; }

 private:
  class Line;
  struct Guard;
  explicit Store(std::shared_ptr<c10d::Store> store) : store_(std::move(store)) {}
  template <class Request>
  auto ask(std::chrono::milliseconds more, Request request) const;
  std::optional<std::vector<std::string>> opened_all(const std::vector<std::string>& keys,
                                                     const std::vector<std::vector<uint8_t>>& values) const;
  std::optional<std::string> opened(const std::string& key, const std::string& value) const;

  std::shared_ptr<c10d::Store> store_;
  uint16_t port_ = 0;
  std::shared_ptr<Line> line_;    // connection to a server; destroyed before the store that it uses
  std::string prefix_;            // prefix of all keys of this view, which the seal includes
  std::shared_ptr<Guard> guard_;  // seal of this store; null if it is not sealed
};

}  // namespace colossal::comm
