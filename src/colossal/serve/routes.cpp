#include "colossal/serve/routes.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/serve/generation.h"

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
  bool continues_text = false;  // a model that only embeds gets 400
  bool needs_key = true;
  bool while_draining = false;
  bool while_loading = false;
  bool is_quick = false;
};

constexpr RouteRow kRoutes[] = {
    {"POST", "/v1/completions", answer_completion, true},
    {"POST", "/v1/chat/completions", answer_chat, true},
    {"POST", "/v1/embeddings", embed_texts},
    {"GET", "/v1/models", list_models},
    {"GET", "/v1/models/*", show_model},
    {"POST", "/tokenize", tokenize},
    {"POST", "/detokenize", detokenize},
    {"GET", kHealthPath, show_health, false, false, true, true, true},
    {"GET", "/metrics", show_metrics, false, true, true, true, true},
    {"GET", "/", show_page, false, false, false, true},
};

}  // namespace

std::vector<http::Route> routes(Service& service) {
  std::vector<http::Route> all;
  for (const RouteRow& row : kRoutes) {
    const auto handler = [&service, &row](const http::Request& request, http::Exchange exchange) {
      if (!row.while_loading && !service.is_open())
        throw http::RequestError(503, "the model is not loaded yet: try again later");
      if (row.continues_text) require_continuation(service.model());
      row.handler(service, request, std::move(exchange));
    };
    all.push_back({row.method, row.path, handler, row.needs_key, row.while_draining, row.is_quick});
  }
  return all;
}

std::string embedding_routes_text() {
  std::string text = "The model embeds texts, so this server has no chat page. Its routes are:\n\n";
  for (const RouteRow& row : kRoutes)
    if (!row.continues_text && row.handler != show_page) text += concat(row.method, " ", row.path, "\n");
  return text;
}

}  // namespace colossal::serve
