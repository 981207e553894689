#include "colossal/cli/server_front.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/cli/local_world.h"
#include "colossal/serve/engine_loop.h"
#include "colossal/serve/routes.h"

namespace colossal::cli {

using DrainClock = std::chrono::steady_clock;

ServerFront::ServerFront(const ServeOptions& options)
    : options_(options),
      service_({.defaults = options.defaults,
                .limits = options.limits,
                .has_keys = !options.keys.is_empty(),
                .only_embeds = !options.draws && !options.task.continues(),
                .draws = options.draws,
                .log = [](const std::string& line) { say(line); }}),
      server_({.host = options.host,
               .port = options.port,
               .limits = options.limits,
               .keys = options.keys,
               .allowed_hosts = options.allowed_hosts,
               .on_end = [this](const http::RequestEnd& end) { service_.log_end(end); }},
              serve::routes(service_)) {
  if (!server_.notice().empty()) say(server_.notice());
}

void ServerFront::drain() {
  service_.drain();
  server_.drain();
}

/// Ends a server after a stop signal, when its requests have ended or --drain seconds later.
class ServerFront::Drain {
 public:
  Drain(ServerFront& front, serve::ServedReplicas& replicas) : front_(front), replicas_(replicas) {}

  void poll() {
    if (has_ended_ || !stop_requested()) return;
    if (!deadline_) begin();
    // The launcher signals again if a rank has died. The error of that rank then ends the streams, not this drain.
    constexpr std::chrono::milliseconds kTimeOfErrors{300};
    if (stop_is_urgent() && !std::exchange(is_urgent_, true))
      deadline_ = std::min(*deadline_, DrainClock::now() + kTimeOfErrors);
    if (front_.server_.running() > 0 && DrainClock::now() < *deadline_) return;
    has_ended_ = true;
    front_.server_.stop();  // before the work drops what runs, so that its streams end with an error
    replicas_.end();
  }

 private:
  void begin() {
    const double seconds = front_.options_.drain;
    front_.drain();
    deadline_ =
        DrainClock::now() + std::chrono::duration_cast<DrainClock::duration>(std::chrono::duration<double>(seconds));
    if (const int64_t running = front_.server_.running(); running > 0)
      say(concat("stopping: ", running, running == 1 ? " request gets " : " requests get ", seconds, " s to end"));
  }

  ServerFront& front_;
  serve::ServedReplicas& replicas_;
  std::optional<DrainClock::time_point> deadline_{};
  bool is_urgent_ = false, has_ended_ = false;
};

int ServerFront::serve_until_stopped(serve::ServedModel model, const std::string& summary,
                                     serve::ServedReplicas& replicas) {
  struct StopAtEnd {  // routes use the model and the replicas
    ~StopAtEnd() { server.stop(); }
    http::Server& server;
  } const stop_at_end{server_};
  service_.open(std::move(model), replicas.replica());
  say(concat("ready at ", server_.url(), ": ", options_.name, summary));
  Drain ending(*this, replicas);
  try {
    replicas.run([&ending] { ending.poll(); });
  } catch (const std::exception&) {
    constexpr double kSecondsToTell = 1;  // the launcher kills this rank 5 s after another one has died
    drain();
    server_.wait_until_idle(kSecondsToTell);  // unfinished requests end with the error
    throw;
  }
  return stop_is_urgent() ? stop_status() : 0;
}

void say_stalls_of_work(comm::World& world) {
  world.on_stall([](const comm::Stall& stall) {
    if (stall.seen_here && stall.busy_with != serve::kIdle) say("waiting: " + stall.text);
  });
}

}  // namespace colossal::cli
