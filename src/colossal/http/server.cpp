#include "colossal/http/server.h"

#include <chrono>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/http/sockets.h"

namespace colossal::http {

struct Server::State {
  std::string notice;
  ServerCore core;
  std::unique_ptr<Sockets> sockets;
  std::once_flag stopped;
};

Server::Server(ServerOptions options, std::vector<Route> routes) {
  options.limits.check();
  std::string notice = fit_open_files(options.limits);
  Admission admission{options.keys, options.allowed_hosts, is_loopback(options.host)};
  auto handlers = std::make_shared<WorkerPool>(options.workers), tasks = std::make_shared<WorkerPool>(options.workers);
  state_.reset(
      new State{std::move(notice),
                {std::move(options), std::move(routes), std::move(admission), {std::move(handlers), std::move(tasks)}},
                {},
                {}});
  state_->sockets = make_sockets(state_->core);
  state_->sockets->start();
}

Server::~Server() { stop(); }

int64_t Server::port() const { return state_->sockets->port(); }

std::string Server::url() const {
  const std::string address = state_->sockets->address();
  const bool is_v6 = address.find(':') != std::string::npos;
  return concat("http://", is_v6 ? "[" + address + "]" : address, ":", port());
}

const std::string& Server::notice() const { return state_->notice; }
const ServerLimits& Server::limits() const { return state_->core.options.limits; }
void Server::drain() { state_->core.is_draining = true; }
bool Server::is_draining() const { return state_->core.is_draining; }
int64_t Server::running() const { return state_->core.running; }
int64_t Server::connections() const { return state_->core.connections; }

bool Server::wait_until_idle(double seconds) const {
  ServerCore& core = state_->core;
  std::unique_lock lock(core.mutex);
  return core.has_changed.wait_for(lock, std::chrono::duration<double>(seconds), [&core] { return core.running == 0; });
}

void Server::stop() {
  std::call_once(state_->stopped, [this] {
    constexpr std::chrono::seconds kToLeave{1};  // for bytes that are queued
    ServerCore& core = state_->core;
    core.is_draining = true;
    state_->sockets->begin_stop();
    {
      std::unique_lock lock(core.mutex);
      core.has_changed.wait_for(lock, kToLeave, [&core] { return core.connections == 0; });
    }
    state_->sockets->close_all();
    core.pools.handlers->stop();  // before the tasks that handlers post
    core.pools.tasks->stop();
    state_->sockets->join();
  });
}

}  // namespace colossal::http
