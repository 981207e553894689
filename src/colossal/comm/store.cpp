#include "colossal/comm/store.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

// The intrusive pointer lives in the deleter, so that headers need no c10.
std::shared_ptr<c10d::Store> shared(c10::intrusive_ptr<c10d::Store> store) {
  c10d::Store* address = store.get();
  return {address, [kept = std::move(store)](c10d::Store*) {}};
}

std::vector<uint8_t> to_bytes(const std::string& text) { return {text.begin(), text.end()}; }
std::string to_text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

c10::intrusive_ptr<c10d::TCPStore> connect(const Store::Tcp& options, bool use_uv) {
  c10d::TCPStoreOptions c10d_options;
  c10d_options.port = options.port;
  c10d_options.isServer = options.server;
  c10d_options.waitWorkers = false;
  c10d_options.timeout = options.limit;
  c10d_options.useLibUV = use_uv;
  if (options.listener >= 0) c10d_options.masterListenFd = use_uv ? options.listener : dup(options.listener);
  return c10::make_intrusive<c10d::TCPStore>(options.host, c10d_options);
}

}  // namespace

std::shared_ptr<Store> Store::in_memory() {
  return std::make_shared<Store>(shared(c10::make_intrusive<c10d::HashStore>()), 0);
}

std::shared_ptr<Store> Store::tcp(const Tcp& options) {
  const auto made = [&](bool use_uv) {
    auto store = connect(options, use_uv);
    const uint16_t port = store->getPort();
    return std::make_shared<Store>(shared(std::move(store)), port);
  };
  const auto refused = [&](const std::exception& error) -> Error {
    const std::string message = plain_message(error);
    if (options.server && (contains(message, "EADDRINUSE") || contains(message, "address already in use"))) {
      return Error("launch", concat("port ", options.port,
                                    " is in use on this host; set MASTER_PORT to a free one, or "
                                    "end what listens there"));
    }
    if (options.server) return Error("launch", concat("cannot listen on port ", options.port, ": ", message));
    return Error("launch",
                 concat("no answer from ", options.host, ":", options.port, " within ", options.limit.count() / 1000.0,
                        " s; is rank 0 running there, and do MASTER_ADDR and "
                        "MASTER_PORT name it? (",
                        message, ")"));
  };
  try {
    return made(true);
  } catch (const std::exception& error) {
    if (!contains(error.what(), "libuv")) throw refused(error);
  }
  try {
    return made(false);  // a build of torch without libuv
  } catch (const std::exception& error) {
    throw refused(error);
  }
}

std::shared_ptr<Store> Store::with_prefix(const std::string& prefix) const {
  auto inner = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store_.get());
  auto view = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(inner));
  return std::make_shared<Store>(shared(std::move(view)), port_);
}

void Store::set(const std::string& key, const std::string& value) { store_->set(key, to_bytes(value)); }

std::string Store::get(const std::string& key, std::chrono::milliseconds limit, const std::string& what) {
  try {
    store_->wait({key}, limit);
    return to_text(store_->get(key));
  } catch (const std::exception& error) {
    throw Error("launch", concat("waited ", limit.count() / 1000.0, " s for ", what, " (", plain_message(error), ")"));
  }
}

std::optional<std::string> Store::find(const std::string& key) {
  if (!store_->check({key})) return std::nullopt;
  return to_text(store_->get(key));
}

int64_t Store::add(const std::string& key, int64_t amount) { return store_->add(key, amount); }

}  // namespace colossal::comm
