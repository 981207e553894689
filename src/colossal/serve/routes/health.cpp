// GET /health: 200 if the server takes requests, else 503.
#include "colossal/base/error.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

void show_health(Service& service, const http::Request&, http::Exchange exchange) {
  const char* status = service.is_draining() ? "draining" : service.is_open() ? "ok" : "loading";
  const bool is_ok = service.is_open() && !service.is_draining();
  exchange.answer({.status = is_ok ? 200 : 503, .body = concat(R"({"status": ")", status, R"("})")});
}

}  // namespace colossal::serve
