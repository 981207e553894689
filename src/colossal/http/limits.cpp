#include "colossal/http/limits.h"

#include <sys/resource.h>

#include <algorithm>

#include "colossal/base/bytes.h"
#include "colossal/base/error.h"

namespace colossal::http {

void ServerLimits::fields(Fields& f) {
  f.bytes("max_header", max_header, "bytes of a request's headers; a longer one gets 431", 1 << 10, 1 << 20);
  f.bytes("max_body", max_body, "bytes of a request's body; a longer one gets 413", 1, int64_t{1} << 32);
  f.bytes("max_bodies", max_bodies, "bytes of all bodies in memory; further bodies wait unread", 1);
  f.integer("max_depth", max_depth, "levels", "nested objects and lists of a request's JSON", 1, 1000);
  f.integer("max_n", max_n, "choices", "largest n of a request", 1);
  f.integer("max_connections", max_connections, "connections", "open connections; a further one gets 503", 1, 1 << 20);
  f.integer("max_waiting", max_waiting, "requests",
            "requests that wait for their first step, each prompt and choice counted; a further one gets 429", 1);
  f.number("header_timeout", header_timeout, "seconds", "time for the headers of a request", 0.001, 1e6);
  f.number("body_timeout", body_timeout, "seconds", "time for the body of a request", 0.001, 1e6);
  f.number("idle_timeout", idle_timeout, "seconds", "time until a connection without a request is closed", 0.001, 1e6);
  f.bytes("max_unread", max_unread, "unread bytes of a stream, above which its request is cancelled", 1);
  f.number("unread_timeout", unread_timeout, "seconds",
           "time until the request of a client that does not read is cancelled", 0.001, 1e6);
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
