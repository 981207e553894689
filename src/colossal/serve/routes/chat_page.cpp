// GET /: the chat page, or the routes of a model that does not continue text.
#include <utility>

#include "colossal/serve/page.h"
#include "colossal/serve/routes.h"

namespace colossal::serve {

void show_page(Service& service, const http::Request&, http::Exchange exchange) {
  if (!service.has_chat_page())
    return exchange.answer({.body = routes_text(service.draws()), .content_type = "text/plain; charset=utf-8"});
  http::Response response{.body = std::string(page_html()), .content_type = kPageType};
  response.headers.add("Content-Security-Policy", page_policy());
  response.headers.add("Cache-Control", "no-cache");
  exchange.answer(std::move(response));
}

}  // namespace colossal::serve
