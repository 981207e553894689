#include "colossal/serve/routes.h"

#include <utility>

namespace colossal::serve {

/// Answers a request. Errors: http::RequestError.
using RouteHandler = void(Service& service, const http::Request& request, http::Exchange exchange);

// The handlers. Their files are in serve/routes.
RouteHandler answer_completion, answer_chat, embed_texts, list_models, show_model, tokenize, detokenize, show_health,
    show_metrics, show_page;

namespace {

struct RouteRow {
  const char *method, *path;
  RouteHandler* handler;
  bool needs_key = true;
  bool while_draining = false;
  bool while_loading = false;
  bool is_quick = false;
};

constexpr RouteRow kRoutes[] = {
    {"POST", "/v1/completions", answer_completion},
    {"POST", "/v1/chat/completions", answer_chat},
    {"POST", "/v1/embeddings", embed_texts},
    {"GET", "/v1/models", list_models},
    {"GET", "/v1/models/*", show_model},
    {"POST", "/tokenize", tokenize},
    {"POST", "/detokenize", detokenize},
    {"GET", "/health", show_health, false, true, true, true},
    {"GET", "/metrics", show_metrics, true, true, true, true},
    {"GET", "/", show_page, false, false, true},
};

}  // namespace

std::vector<http::Route> routes(Service& service) {
  std::vector<http::Route> all;
  for (const RouteRow& row : kRoutes) {
    const auto handler = [&service, &row](const http::Request& request, http::Exchange exchange) {
      if (!row.while_loading && !service.is_open())
        throw http::RequestError(503, "the model is not loaded yet: try again later");
      row.handler(service, request, std::move(exchange));
    };
    all.push_back({row.method, row.path, handler, row.needs_key, row.while_draining, row.is_quick});
  }
  return all;
}

}  // namespace colossal::serve
