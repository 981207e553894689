// The routes of a server. A new route is a file in serve/routes and a row in routes.cpp.
#pragma once
#include <string>
#include <vector>

#include "colossal/http/routes.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

/// Returns all routes. `service` must outlive them. Until Service::open() all of them but /health, /metrics and the
/// page answer 503.
std::vector<http::Route> routes(Service& service);

/// Route of probes, which ask every few seconds. The log has no lines for it.
inline constexpr char kHealthPath[] = "/health";

/// Returns a plain text that lists the routes of a server whose model does not continue texts: it draws pictures, or it
/// embeds texts.
std::string routes_text(bool draws);

}  // namespace colossal::serve
