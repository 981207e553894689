#include "colossal/http/limits.h"

#include <sys/resource.h>

#include <algorithm>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"

namespace colossal::http {

void ServerLimits::fields(Fields& f) {
  f.bytes("max_header", max_header, "maximum bytes of a request's headers; more get 431", 1 << 10, 1 << 20);
  f.bytes("max_body", max_body, "maximum bytes of a request's body; more get 413", 1, int64_t{1} << 32);
  f.bytes("max_bodies", max_bodies, "maximum bytes of all bodies in memory; further bodies wait unread", 1);
  f.integer("max_depth", max_depth, "levels", "maximum levels of nested objects and lists in a request; more get 400",
            1, 1000);
  f.integer("max_n", max_n, "choices",
            "maximum n of a request, which is its number of choices per prompt; more get 400", 1);
  f.integer("max_connections", max_connections, "connections",
            "maximum number of open connections; a further one gets 503", 1, 1 << 20);
  f.integer(
      "max_waiting", max_waiting, "requests",
      "maximum number of requests that wait for their first step, each prompt and choice counted; further ones get 429",
      1);
  f.number("header_timeout", header_timeout, "seconds",
           "seconds that a client has to send the headers of a request; then it gets 408", 0.001, 1e6);
  f.number("body_timeout", body_timeout, "seconds",
           "seconds that a client has to send the body of a request; then it gets 408", 0.001, 1e6);
  f.number("idle_timeout", idle_timeout, "seconds", "seconds until a connection without a request is closed", 0.001,
           1e6);
  f.bytes("max_unread", max_unread,
          "maximum bytes of a stream that its client has not read; with more its request is cancelled", 1);
  f.number("unread_timeout", unread_timeout, "seconds",
           "seconds until the request of a client that does not read its answer is cancelled", 0.001, 1e6);
}

void ServerLimits::check() const {
  require(max_bodies >= max_body, "serve", "max_bodies must be at least max_body, ", print_bytes(max_body), ": got ",
          print_bytes(max_bodies), "; raise --max-bodies or lower --max-body");
}

std::string fit_open_files(ServerLimits& limits) {
  // Files of the program itself, such as weights, connections between ranks and the log, and connections that are
  // being refused.
  constexpr int64_t kOther = 256;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return "";
  const auto limit_of = [](rlim_t limit) {
    return limit == RLIM_INFINITY ? kMaxInteger : static_cast<int64_t>(std::min<rlim_t>(limit, kMaxInteger));
  };
  const int64_t needed = limits.max_connections + kOther;
  if (limit_of(files.rlim_cur) < needed) {
    files.rlim_cur = static_cast<rlim_t>(std::min(needed, limit_of(files.rlim_max)));
    if (setrlimit(RLIMIT_NOFILE, &files) != 0) getrlimit(RLIMIT_NOFILE, &files);
  }
  const int64_t available = limit_of(files.rlim_cur);
  if (available >= needed) return "";
  require(available > kOther, "serve", "the limit of open files must be at least ", kOther + 1, ": got ", available,
          "; raise it with `ulimit -n ", needed, "`");
  const int64_t wanted = limits.max_connections;
  limits.max_connections = available - kOther;
  return concat("max_connections is ", limits.max_connections, " instead of ", wanted, ", because ", available,
                " files may be open: raise the limit with `ulimit -n ", needed, "`");
}

}  // namespace colossal::http
