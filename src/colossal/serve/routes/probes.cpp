// GET /health: 200 if the server takes requests, else 503.
// GET /metrics: the numbers of the server for Prometheus.
#include "colossal/base/error.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

void show_health(Service& service, const http::Request&, http::Exchange exchange) {
  const char* status = service.is_draining() ? "draining" : service.is_open() ? "ok" : "loading";
  const bool is_ok = service.is_open() && !service.is_draining();
  exchange.answer({.status = is_ok ? 200 : 503, .body = concat(R"({"status": ")", status, R"("})")});
}

void show_metrics(Service& service, const http::Request&, http::Exchange exchange) {
  Metrics& metrics = service.metrics();
  if (service.is_open()) {
    const ReplicaLoad load = service.replica().load();
    metrics.requests_running = load.running;
    metrics.requests_waiting = load.waiting;
    metrics.cache_blocks = load.blocks;
    metrics.cache_blocks_used = load.blocks_used;
  }
  exchange.answer({.body = prometheus_text(metrics), .content_type = kPrometheusType});
}

}  // namespace colossal::serve
