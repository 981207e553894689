#include "colossal/comm/store.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "colossal/base/descriptor.h"
#include "colossal/base/error.h"
#include "colossal/comm/backends/worker.h"
#include "colossal/comm/launch/host.h"
#include "colossal/comm/seal.h"

namespace colossal::comm {

using std::chrono::milliseconds;

namespace {

constexpr const char* kForged =
    "the value was written without the run's secret: set the same COLOSSAL_SECRET on all ranks";

// The intrusive pointer lives in the deleter, so that headers need no c10.
std::shared_ptr<c10d::Store> shared(c10::intrusive_ptr<c10d::Store> store) {
  c10d::Store* address = store.get();
  return {address, [kept = std::move(store)](c10d::Store*) {}};
}

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// Returns a socket that listens only at the loopback address `options.host`; c10d itself would listen on all
/// interfaces.
Descriptor loopback_listener(const Store::Tcp& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
  if (failure != 0) throw std::runtime_error(concat(options.host, ": ", gai_strerror(failure)));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> address(found, &freeaddrinfo);
  Descriptor listener(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;  // allows a port that an ended run still holds in TIME_WAIT
  const bool listens =
      listener.is_open() && setsockopt(listener.value(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
      bind(listener.value(), address->ai_addr, address->ai_addrlen) == 0 && listen(listener.value(), SOMAXCONN) == 0;
  if (listens) return listener;
  throw std::runtime_error(errno == EADDRINUSE ? "EADDRINUSE" : std::strerror(errno));
}

uint16_t port_of(const Descriptor& listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(listener.value(), reinterpret_cast<sockaddr*>(&address), &length);
  const bool is_v6 = address.ss_family == AF_INET6;
  return ntohs(is_v6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                     : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

c10::intrusive_ptr<c10d::TCPStore> connect(const Store::Tcp& options, bool use_uv) {
  c10d::TCPStoreOptions c10d_options;
  Descriptor listener;
  if (options.server && is_loopback(options.host)) listener = loopback_listener(options);
  c10d_options.port = listener.is_open() ? port_of(listener) : options.port;
  c10d_options.isServer = options.server;
  c10d_options.waitWorkers = false;
  c10d_options.timeout = options.limit;
  c10d_options.useLibUV = use_uv;
  // The descriptor is duplicated because c10d closes the one it gets, and connect() is called twice without libuv.
  if (listener.is_open()) c10d_options.masterListenFd = fcntl(listener.value(), F_DUPFD_CLOEXEC, 0);
  return c10::make_intrusive<c10d::TCPStore>(options.host, c10d_options);
}

}  // namespace

/// Makes the requests to a server on a separate thread, because c10d sets no limit on an answer. Without that thread,
/// a stopped server, a lost host or a stranger on the port would block the caller forever.
class Store::Line {
 public:
  explicit Line(const Tcp& server)
      : name_(concat(server.host, ":", server.port)), patience_(std::max(server.limit, milliseconds(10000))) {}
  ~Line() {
    // Its destructor would wait for the thread, so the worker is left to the end of the process.
    if (is_silent_) (void)worker_.release();
  }

  /// Returns the result of `request`, or throws Error if there is no answer for longer than usual plus `more`.
  /// `request` may outlive the call, so it owns everything it uses.
  template <class Request>
  auto ask(milliseconds more, Request request) {
    if (is_silent_) refuse(patience_);
    auto task = std::make_shared<std::packaged_task<decltype(request())()>>(std::move(request));
    auto answer = task->get_future();
    worker_->submit([task] { (*task)(); });
    // The wait is split into slices, so that time in which this process itself was stopped hardly counts as silence.
    const milliseconds slice(500), limit = more + patience_;
    for (milliseconds waited(0); answer.wait_for(slice) == std::future_status::timeout; waited += slice) {
      if (waited < limit) continue;
      is_silent_ = true;
      refuse(limit);
    }
    return answer.get();
  }

 private:
  [[noreturn]] void refuse(milliseconds waited) const {
    throw Error("launch", concat("the store at ", name_, " has not answered for ", waited.count() / 1000.0,
                                 " s; check that its process and host run and that no other program listens there"));
  }

  const std::string name_;
  const milliseconds patience_;
  std::atomic<bool> is_silent_ = false;
  std::unique_ptr<Worker> worker_ = std::make_unique<Worker>();
};

template <class Request>
auto Store::ask(milliseconds more, Request request) const {
  const auto to = [store = store_, request = std::move(request)] { return request(*store); };
  return line_ ? line_->ask(more, to) : to();
}

std::shared_ptr<Store> Store::in_memory() {
  return std::shared_ptr<Store>(new Store(shared(c10::make_intrusive<c10d::HashStore>())));
}

std::shared_ptr<Store> Store::tcp(const Tcp& wanted) {
  Tcp options = wanted;
  if (options.host == "localhost") options.host = "127.0.0.1";  // otherwise some ranks would try ::1 in vain
  auto line = std::make_shared<Line>(options);
  const auto made = [&](bool use_uv) {
    auto store = line->ask(options.limit, [options, use_uv] { return connect(options, use_uv); });
    const uint16_t port = store->getPort();
    std::shared_ptr<Store> result(new Store(shared(std::move(store))));
    result->port_ = port;
    result->line_ = std::move(line);
    return result;
  };
  const auto refused = [&](const std::exception& error) -> Error {
    const std::string message = plain_message(error);
    if (options.server && (contains(message, "EADDRINUSE") || contains(message, "address already in use"))) {
      return Error("launch", concat("port ", options.port,
                                    " is in use on this host; set MASTER_PORT to a free one, or "
                                    "stop the program that listens there"));
    }
    if (options.server) return Error("launch", concat("cannot listen on port ", options.port, ": ", message));
    return Error("launch",
                 concat("no answer from ", options.host, ":", options.port, " within ", options.limit.count() / 1000.0,
                        " s; check that rank 0 runs there and that MASTER_ADDR and "
                        "MASTER_PORT name it (",
                        message, ")"));
  };
  try {
    return made(true);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (!contains(error.what(), "libuv")) throw refused(error);
  }
  try {
    return made(false);  // builds of torch without libuv need this
  } catch (const std::exception& error) {
    throw refused(error);
  }
}

/// The seal of a store and of all its views, and whether a forged value has been reported.
struct Store::Guard {
  Seal seal;
  std::function<void(const std::string&)> note;
  std::atomic<bool> noted = false;
};

std::shared_ptr<Store> Store::with_prefix(const std::string& prefix) const {
  auto inner = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store_.get());
  auto view = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(inner));
  auto result = std::make_shared<Store>(*this);
  result->store_ = shared(std::move(view));
  result->prefix_ = prefix_ + prefix + "/";
  return result;
}

std::shared_ptr<Store> Store::sealed(const std::string& secret, std::function<void(const std::string&)> note) const {
  auto result = std::make_shared<Store>(*this);
  result->guard_ = std::make_shared<Guard>(Seal(secret), std::move(note));
  return result;
}

std::optional<std::string> Store::opened(const std::string& key, const std::string& value) const {
  if (!guard_) return value;
  auto result = guard_->seal.open(prefix_ + key, value);
  if (!result && guard_->note && !guard_->noted.exchange(true)) {
    guard_->note(concat("ignored a value of \"", prefix_, key, "\" in the store at port ", port_,
                        ": it was written without the run's secret, by a stranger or by a rank with another ",
                        "COLOSSAL_SECRET"));
  }
  return result;
}

std::optional<std::vector<std::string>> Store::opened_all(const std::vector<std::string>& keys,
                                                          const std::vector<std::vector<uint8_t>>& values) const {
  std::vector<std::string> result;
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto text = opened(keys[i], to_text(values[i]));
    if (!text) return std::nullopt;
    result.push_back(*text);
  }
  return result;
}

void Store::set(const std::string& key, const std::string& value) {
  const auto bytes = to_bytes(guard_ ? guard_->seal.close(prefix_ + key, value) : value);
  ask(milliseconds(0), [key, bytes](c10d::Store& store) { store.set(key, bytes); });
}

std::string Store::get(const std::string& key, milliseconds limit, const std::string& what) {
  return get_all({key}, limit, what)[0];
}

std::vector<std::string> Store::get_all(const std::vector<std::string>& keys, milliseconds limit,
                                        const std::string& what) {
  const auto end = std::chrono::steady_clock::now() + limit;
  const auto waited = [&](const std::string& why) {
    return Error("launch", concat("waited ", limit.count() / 1000.0, " s for ", what, " (", why, ")"));
  };
  bool is_forged = false;  // kept for the message, because rank 0, which serves the store, may end first
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
    try {
      const auto rest = std::max(left, milliseconds(1));
      const auto values = ask(rest, [keys, rest](c10d::Store& store) {
        store.wait(keys, rest);
        return store.multiGet(keys);
      });
      if (const auto texts = opened_all(keys, values)) return *texts;
      is_forged = true;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw waited(is_forged ? kForged : plain_message(error));
    }
    if (left.count() <= 0) throw waited(kForged);
    std::this_thread::sleep_for(milliseconds(100));
  }
}

std::optional<std::string> Store::find(const std::string& key) {
  if (!holds(key)) return std::nullopt;
  return opened(key, to_text(ask(milliseconds(0), [key](c10d::Store& store) { return store.get(key); })));
}

bool Store::holds(const std::string& key) {
  return ask(milliseconds(0), [key](c10d::Store& store) { return store.check({key}); });
}

int64_t Store::add(const std::string& key, int64_t amount) {
  return ask(milliseconds(0), [key, amount](c10d::Store& store) { return store.add(key, amount); });
}

}  // namespace colossal::comm
