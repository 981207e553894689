// POST /detokenize: the text of tokens, with special tokens, in vLLM's shape.
#include "colossal/serve/answers.h"
#include "colossal/serve/body_fields.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

void detokenize(Service& service, const http::Request& request, http::Exchange exchange) {
  const DetokenizeRequest wanted = service.reader().detokenize(request.body);
  const std::string text =
      as_bad_request("tokens", [&] { return service.model().tokenizer->decode(wanted.tokens, /*with_special=*/true); });
  exchange.answer({.body = detokenize_json(text)});
}

}  // namespace colossal::serve
