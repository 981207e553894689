// A server of HTTP/1.1 and HTTP/1.0.
//
//   Server server({.port = 0}, {{"GET", "/health", [](const Request&, Exchange exchange) {
//     exchange.answer({.body = R"({"status": "ok"})"});
//   }, false}});
//   std::cout << server.url();                 // http://127.0.0.1:45123
//   server.drain();                            // new requests get 503
//   server.wait_until_idle(30);
//   server.stop();
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/http/limits.h"
#include "colossal/http/routes.h"

namespace colossal::http {

/// The outcome of a request. Refused requests have one, too.
struct RequestEnd {
  uint64_t number = 0;   ///< Request::number
  std::string id{};      ///< Request::id
  std::string method{};  ///< "" = the request could not be read
  std::string route{};   ///< Route::path; "" = refused before a route was found
  int64_t key = 0;       ///< number of the key; 0 = none
  std::string remote_address{};
  int status = 0;            ///< status of the answer; 0 = the client was gone before it
  bool is_complete = false;  ///< the whole answer was given to the operating system
  double seconds = 0;        ///< from the end of the headers to the end of the answer
};

struct ServerOptions {
  std::string host = "127.0.0.1";  ///< an IP address, or "localhost"
  int64_t port = 8000;             ///< 0 = any free port
  ServerLimits limits{};
  Keys keys{};
  std::vector<std::string> allowed_hosts{};  ///< Admission::hosts
  /// Called on the I/O thread after each request. It must be quick and must not throw.
  std::function<void(const RequestEnd&)> on_end{};
  double silence = 15;  ///< seconds until a silent stream of events gets the comment `: waiting`
  int64_t workers = 2;  ///< threads that run handlers, and as many that run tasks of exchanges
};

/// One thread serves all connections; worker threads call the handlers, and others run the tasks of exchanges, so that
/// streams go on beside handlers that take long. Handlers run in turns of clients (client_of()), and requests with
/// bodies of more than 64 KiB leave one thread for the others. The I/O thread reads while an answer is under way, so it
/// notices at once that a client has left. Connections are kept alive, and requests may be pipelined.
///
/// Thread safety: any thread may call the members. Handlers must not call stop() or wait_until_idle().
/// Memory: per connection some hundred bytes and what it has sent of a request, within the limits.
class Server {
 public:
  /// Listens and begins to serve. Raises the soft limit of open files (fit_open_files()).
  /// Errors ("serve"): the address is not one of this machine, or its port is in use; errors of ServerLimits::check().
  Server(ServerOptions options, std::vector<Route> routes);
  ~Server();  ///< calls stop()

  int64_t port() const;
  std::string url() const;  ///< http://ADDRESS:PORT
  /// A sentence for the log if the limit of open files lowered max_connections, else "".
  const std::string& notice() const;
  const ServerLimits& limits() const;  ///< the limits in use

  /// From now on new requests get 503, except on routes with `while_draining`. Running requests go on.
  void drain();
  bool is_draining() const;
  /// Returns the number of requests that have no complete answer yet.
  int64_t running() const;
  int64_t connections() const;
  /// Waits until no request runs. Returns false if that took longer than `seconds`.
  bool wait_until_idle(double seconds) const;
  /// Ends accepting, and ends running answers with an error: 503 or, in a stream, an event (Gone::kStopped). Gives
  /// clients up to a second to read what is queued, closes all connections and joins the threads. Later calls do
  /// nothing.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace colossal::http
