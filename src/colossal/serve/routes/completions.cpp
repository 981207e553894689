// POST /v1/completions: continues prompts.
#include <utility>
#include <variant>

#include "colossal/serve/body_fields.h"
#include "colossal/serve/generation.h"

namespace colossal::serve {

void answer_completion(Service& service, const http::Request& request, http::Exchange exchange) {
  const ServedModel& model = service.model();
  const CompletionRequest wanted = service.reader().completion(request.body);
  GenerationJob job{.request = wanted, .writer = completion_writer()};
  for (const Prompt& prompt : wanted.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    job.prompts.push_back(text ? as_bad_request("prompt", [&] { return model.tokenizer->encode_prompt(*text); })
                               : std::get<std::vector<int64_t>>(prompt));
    if (!wanted.echo) continue;
    const std::vector<int64_t>& ids = job.prompts.back();
    job.echoes.push_back({.text = text ? *text : text::valid_utf8(model.tokenizer->decode(ids)),
                          .ids = ids,
                          .with_logprobs = wanted.options.prompt_logprobs >= 0});
  }
  generate(service, request, std::move(exchange), std::move(job));
}

}  // namespace colossal::serve
