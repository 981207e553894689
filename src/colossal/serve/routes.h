// The routes of a server. A new route is a file in serve/routes and a row in routes.cpp.
#pragma once
#include <vector>

#include "colossal/http/routes.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

/// Returns all routes. `service` must outlive them. Until Service::open() all of them but /health, /metrics and the
/// page answer 503.
std::vector<http::Route> routes(Service& service);

}  // namespace colossal::serve
