// GET /v1/models and GET /v1/models/NAME: the one model of the server.
#include "colossal/serve/answers.h"
#include "colossal/serve/generation_fields.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

void list_models(Service& service, const http::Request&, http::Exchange exchange) {
  const ServedModel& model = service.model();
  exchange.answer({.body = models_json(model.name, model.created, model.max_length)});
}

void show_model(Service& service, const http::Request& request, http::Exchange exchange) {
  const ServedModel& model = service.model();
  if (model.demands_name && request.rest != model.name) refuse_model(request.rest, model.name);
  exchange.answer({.body = model_json(model.name, model.created, model.max_length)});
}

}  // namespace colossal::serve
