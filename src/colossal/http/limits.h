// The limits of a server: what one client, or all clients together, may make it hold or wait for.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::http {

struct ServerLimits {
  int64_t max_header = 16 << 10;   ///< bytes of the request line and the headers
  int64_t max_body = 8 << 20;      ///< bytes of one body
  int64_t max_bodies = 256 << 20;  ///< bytes of all bodies in memory; further bodies wait unread
  int64_t max_depth = 64;          ///< levels of nested JSON; enforced by the readers of requests
  int64_t max_n = 16;              ///< choices of one request; enforced by the readers of requests
  int64_t max_connections = 2048;  ///< open connections; a further one gets 503
  /// Requests before their first step, each prompt and choice counted; enforced by the engine's loop.
  int64_t max_waiting = 256;
  double header_timeout = 10;      ///< seconds from the first byte of a request to the end of its headers
  double body_timeout = 60;        ///< seconds from there to the end of its body, with the wait for memory
  double idle_timeout = 60;        ///< seconds until a connection without a request is closed
  int64_t max_unread = 256 << 10;  ///< bytes of a stream that wait for a client that does not read
  /// Seconds in which a client must read max_unread bytes of its answer, or all that waits, so that no client makes the
  /// server hold a large answer for long.
  double unread_timeout = 30;

  /// Visits one field per limit. The flag of `max_header` is --max-header.
  void fields(Fields& f);
  /// Errors ("serve"): max_bodies is smaller than max_body.
  void check() const;
};

/// Raises the soft limit of open files of this process so that `limits.max_connections` fit. If the hard limit is too
/// low, it lowers `limits.max_connections` and returns a sentence about that, else "".
/// Errors ("serve"): not even one connection fits.
std::string fit_open_files(ServerLimits& limits);

}  // namespace colossal::http
