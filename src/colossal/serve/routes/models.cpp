// GET /v1/models and GET /v1/models/NAME: the model of the server, and its adapters.
#include "colossal/serve/answers.h"
#include "colossal/serve/generation_fields.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

namespace {

/// `adapter` is null for the model itself.
ShownModel shown_model(const ServedModel& model, const ServedAdapter* adapter) {
  return {.name = adapter ? adapter->name : model.name,
          .parent = adapter ? model.name : "",
          .created = model.created,
          .max_model_len = model.max_length};
}

}  // namespace

void list_models(Service& service, const http::Request&, http::Exchange exchange) {
  const ServedModel& model = service.model();
  std::vector<ShownModel> shown{shown_model(model, nullptr)};
  for (const ServedAdapter& adapter : model.adapters) shown.push_back(shown_model(model, &adapter));
  exchange.answer({.body = models_json(shown)});
}

void show_model(Service& service, const http::Request& request, http::Exchange exchange) {
  const ServedModel& model = service.model();
  check_model(request.rest, model.accepted_names());
  exchange.answer({.body = model_json(shown_model(model, model.adapter_of(request.rest)))});
}

}  // namespace colossal::serve
