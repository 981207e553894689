// POST /v1/images/generations: draws pictures.
#include <ctime>
#include <exception>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/serve/answers.h"
#include "colossal/serve/body_fields.h"
#include "colossal/serve/generation.h"
#include "colossal/serve/service.h"

namespace colossal::serve {
namespace {

/// Returns the drawing of a request, checked, with a seed.
DrawingJob checked_drawing(const ServedModel& model, ImageRequest request) {
  diffusion::DrawOptions& options = request.options;
  if (model.draws_classes) options.drawn = std::exchange(options.prompt, "");
  if (!request.has_seed) options.seed = random_seed();
  as_bad_request("", [&] {
    options.check();
    model.check_drawing(options, request.files);
  });
  return {.options = std::move(options), .files = std::move(request.files)};
}

void answer_pictures(Service& service, http::Exchange exchange, uint64_t number, Drawn drawn) {
  if (drawn.error) {
    service.note(number, [](RequestRecord& record) { record.reason = "error"; });
    std::rethrow_exception(drawn.error);
  }
  std::vector<ShownPicture> pictures;
  for (diffusion::DrawnPicture& one : drawn.pictures) pictures.push_back({std::move(one.png), one.seed});
  exchange.answer({.body = images_json(static_cast<int64_t>(std::time(nullptr)), pictures, drawn.notices)});
}

}  // namespace

void draw_images(Service& service, const http::Request& request, http::Exchange exchange) {
  DrawingJob job = checked_drawing(service.model(), service.reader().image(request.body));
  job.on_end = [&service, exchange, number = request.number](Drawn drawn) mutable {
    const auto shared = std::make_shared<Drawn>(std::move(drawn));
    exchange.post(
        [&service, exchange, number, shared] { answer_pictures(service, exchange, number, std::move(*shared)); });
  };
  service.begin_record(request, exchange);
  const std::optional<Ticket> ticket = service.replica().draw(std::move(job));
  if (!ticket) throw service.queue_is_full(1);
  exchange.when_gone([&service, ticket](http::Gone) { service.replica().cancel(*ticket); });
}

}  // namespace colossal::serve
