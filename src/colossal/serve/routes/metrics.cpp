// GET /metrics: the numbers of the server for Prometheus.
#include "colossal/serve/service.h"

namespace colossal::serve {

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
