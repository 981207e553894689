// GET /: the chat page.
#include <utility>

#include "colossal/serve/page.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

void show_page(Service&, const http::Request&, http::Exchange exchange) {
  http::Response response{.body = std::string(page_html()), .content_type = kPageType};
  response.headers.add("Content-Security-Policy", page_policy());
  response.headers.add("Cache-Control", "no-cache");
  exchange.answer(std::move(response));
}

}  // namespace colossal::serve
