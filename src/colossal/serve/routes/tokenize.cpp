// POST /tokenize: the tokens of a prompt or of a chat, in vLLM's shape.
// POST /detokenize: the text of tokens, with special tokens, in vLLM's shape.
#include <variant>

#include "colossal/serve/answers.h"
#include "colossal/serve/body_fields.h"
#include "colossal/serve/chat_prompt.h"
#include "colossal/serve/service.h"

namespace colossal::serve {

void tokenize(Service& service, const http::Request& request, http::Exchange exchange) {
  const ServedModel& model = service.model();
  const TokenizeRequest wanted = service.reader().tokenize(request.body);
  const auto* chat = std::get_if<ChatRequest>(&wanted.input);
  const std::string text = chat ? chat_prompt(*chat, model.template_of(wanted.model), service.options().defaults.system)
                                : std::get<std::string>(wanted.input);
  const std::vector<int64_t> ids = as_bad_request(chat ? "messages" : "prompt", [&] {
    if (!wanted.add_special_tokens) return model.tokenizer->encode(text);
    return model.continues ? model.tokenizer->encode_prompt(text) : model.tokenizer->encode_whole(text).ids;
  });
  exchange.answer({.body = tokenize_json(ids, model.max_length)});
}

void detokenize(Service& service, const http::Request& request, http::Exchange exchange) {
  const DetokenizeRequest wanted = service.reader().detokenize(request.body);
  const std::string text =
      as_bad_request("tokens", [&] { return service.model().tokenizer->decode(wanted.tokens, /*with_special=*/true); });
  exchange.answer({.body = detokenize_json(text)});
}

}  // namespace colossal::serve
