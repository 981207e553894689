// The table of a server's routes, and the checks of a request before its body is read.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/http/error_answer.h"
#include "colossal/http/exchange.h"
#include "colossal/http/keys.h"
#include "colossal/http/message.h"

namespace colossal::http {

/// Handles one request on a worker thread, or on the I/O thread (Route::is_quick). It answers through the exchange,
/// during the call or later from any thread. The request is valid during the call; the bytes of its body count against
/// ServerLimits::max_bodies until then. A RequestError that it throws is the answer; any other exception is answered
/// with 500 and its message.
using Handler = std::function<void(const Request& request, Exchange exchange)>;

struct Route {
  std::string method;  ///< "GET" or "POST"; a POST must have a body of JSON's content type
  /// The exact path, or a path that ends with `*`, which stands for one or more characters: "/v1/models/*". An exact
  /// path has precedence.
  std::string path;
  Handler handler;
  bool needs_key = true;        ///< false: answered without a key
  bool while_draining = false;  ///< true: the handler is also called while the server drains; else 503
  /// The I/O thread calls the handler, so that the answer does not wait for handlers of other requests. The handler
  /// must take microseconds.
  bool is_quick = false;
};

/// The conditions of all routes.
struct Admission {
  Keys keys{};  ///< empty = no key is needed
  /// Names that `Host` may have, without port, in addition to localhost and loopback addresses; used if `checks_host`.
  std::vector<std::string> hosts{};
  bool checks_host = true;  ///< set for servers on a loopback address, against web pages that use another name for it
};

/// The result of the checks: a route or an error.
struct Admitted {
  const Route* route = nullptr;       ///< the route that the path and method have; nullptr with a refusal
  std::string rest{};                 ///< the part of the path that the wildcard matches, decoded
  int64_t key = 0;                    ///< number of the key; 0 = none
  std::optional<Response> refusal{};  ///< the answer to a request that is refused
};

/// Checks a request by its headers, in this order: 400 (HTTP/1.1 without exactly one `Host`), 403 (`Host`), 401 (key),
/// 404 (path), 405 (method), 503 (draining), 415 (content type, compressed body).
Admitted admit(const Request& request, bool is_http_1_0, bool is_draining, const std::vector<Route>& routes,
               const Admission& admission);

/// Returns true for a name or address that only this machine can reach: localhost, 127.0.0.0/8, ::1.
bool is_loopback(std::string_view host);

}  // namespace colossal::http
