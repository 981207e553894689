// The part of `colossal serve` that talks HTTP on rank 0, for models of every kind.
//
//   ServerFront front(options);                                  // answers 503 while the model loads
//   return front.serve_until_stopped({.open = [&] { front.service().open(model, replica); say(front.url()); },
//                                     .run = [&](const auto& poll) { loop.run(poll); },
//                                     .end = [&] { loop.end(); }});
#pragma once
#include <functional>
#include <string>

#include "colossal/cli/serve_options.h"
#include "colossal/comm/world.h"
#include "colossal/http/server.h"
#include "colossal/serve/service.h"

namespace colossal::cli {

/// The loop that runs the model of a server, on rank 0.
struct ServedWork {
  std::function<void()> open{};                                  ///< opens the service, once the model is loaded
  std::function<void(const std::function<void()>& poll)> run{};  ///< runs work until `end`, and calls `poll` often
  std::function<void()> end{};                                   ///< makes `run` return
};

class ServerFront {
 public:
  /// Listens. `options` must outlive the front. Errors: those of http::Server.
  explicit ServerFront(const ServeOptions& options);

  serve::Service& service() { return service_; }
  std::string url() const { return server_.url(); }

  /// Serves requests until a stop signal, and then until they have ended or --drain seconds later. Returns the exit
  /// status. Errors: those of the work, which unfinished requests get, too.
  int serve_until_stopped(const ServedWork& work);

 private:
  void drain();
  class Drain;

  const ServeOptions& options_;
  serve::Service service_;
  http::Server server_;  // ends before the service, which its routes use
};

/// Says which ranks are late, but not that ranks wait for requests.
void say_stalls_of_work(comm::World& world);

}  // namespace colossal::cli
