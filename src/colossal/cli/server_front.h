// The part of `colossal serve` that talks HTTP on rank 0, for models of every kind.
//
//   ServerFront front(options);                                           // answers 503 while the model loads
//   return front.serve_until_stopped(model, " draws pictures", replicas);
#pragma once
#include <string>

#include "colossal/cli/serve_options.h"
#include "colossal/comm/world.h"
#include "colossal/http/server.h"
#include "colossal/serve/replicas/served_replicas.h"
#include "colossal/serve/service.h"

namespace colossal::cli {

class ServerFront {
 public:
  /// Listens. `options` must outlive the front. Errors: those of http::Server.
  explicit ServerFront(const ServeOptions& options);

  /// Opens the service of the model, whose loops are `replicas`, and says so in a line that ends in `summary`. Serves
  /// requests until a stop signal, and then until they have ended or --drain seconds later. Returns the exit status.
  /// Errors: those of ServedReplicas::run(), which unfinished requests get, too.
  int serve_until_stopped(serve::ServedModel model, const std::string& summary, serve::ServedReplicas& replicas);

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
