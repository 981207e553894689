#include "colossal/serve/routes.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/serve/generation.h"

namespace colossal::serve {

/// Answers a request. Errors: http::RequestError.
using RouteHandler = void(Service& service, const http::Request& request, http::Exchange exchange);

// The handlers. Their files are in serve/routes.
RouteHandler answer_completion, answer_chat, embed_texts, draw_images, list_models, show_model, tokenize, detokenize,
    show_health, show_metrics, show_page;

namespace {

/// What a route asks of the model. Requests to another one get 400.
enum class Needs { kNothing, kTexts, kContinuations, kPictures };

struct RouteRow {
  const char *method, *path;
  RouteHandler* handler;
  Needs needs = Needs::kNothing;
  bool needs_key = true;
  bool while_draining = false;
  bool while_loading = false;
  bool is_quick = false;
};

constexpr RouteRow kRoutes[] = {
    {"POST", "/v1/completions", answer_completion, Needs::kContinuations},
    {"POST", "/v1/chat/completions", answer_chat, Needs::kContinuations},
    {"POST", "/v1/embeddings", embed_texts, Needs::kTexts},
    {"POST", "/v1/images/generations", draw_images, Needs::kPictures},
    {"GET", "/v1/models", list_models},
    {"GET", "/v1/models/*", show_model},
    {"POST", "/tokenize", tokenize, Needs::kTexts},
    {"POST", "/detokenize", detokenize, Needs::kTexts},
    {"GET", kHealthPath, show_health, Needs::kNothing, false, true, true, true},
    {"GET", "/metrics", show_metrics, Needs::kNothing, true, true, true, true},
    {"GET", "/", show_page, Needs::kNothing, false, false, true},
};

/// Throws http::RequestError 400 if the model does not do what the route needs.
void require_of(const ServedModel& model, Needs needs) {
  if (needs == Needs::kNothing) return;
  if (model.draws() && needs != Needs::kPictures)
    throw http::RequestError(400, concat("the model ", model.name, " draws pictures: use /v1/images/generations"));
  if (!model.draws() && needs == Needs::kPictures)
    throw http::RequestError(400, concat("the model ", model.name, " does not draw pictures: use /v1/",
                                         model.continues ? "chat/completions" : "embeddings"));
  if (needs == Needs::kContinuations) require_continuation(model);
}

}  // namespace

std::vector<http::Route> routes(Service& service) {
  std::vector<http::Route> all;
  for (const RouteRow& row : kRoutes) {
    const auto handler = [&service, &row](const http::Request& request, http::Exchange exchange) {
      if (!row.while_loading && !service.is_open())
        throw http::RequestError(503, "the model is not loaded yet: try again later");
      if (service.is_open()) require_of(service.model(), row.needs);
      row.handler(service, request, std::move(exchange));
    };
    all.push_back({row.method, row.path, handler, row.needs_key, row.while_draining, row.is_quick});
  }
  return all;
}

std::string routes_text(bool draws) {
  std::string text = concat("The model ", draws ? "draws pictures" : "embeds texts",
                            ", so this server has no chat page. Its routes are:\n\n");
  const Needs own = draws ? Needs::kPictures : Needs::kTexts;
  for (const RouteRow& row : kRoutes)
    if ((row.needs == Needs::kNothing || row.needs == own) && row.handler != show_page)
      text += concat(row.method, " ", row.path, "\n");
  return text;
}

}  // namespace colossal::serve
