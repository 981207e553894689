// POST /v1/chat/completions: answers chats.
#include <memory>
#include <utility>

#include "colossal/serve/body_fields.h"
#include "colossal/serve/chat_prompt.h"
#include "colossal/serve/generation.h"

namespace colossal::serve {

void answer_chat(Service& service, const http::Request& request, http::Exchange exchange) {
  const ServedModel& model = service.model();
  const ChatRequest wanted = service.reader().chat(request.body);
  const std::string text = chat_prompt(wanted, model.template_of(wanted.model), service.options().defaults.system);
  GenerationJob job{.request = wanted, .writer = chat_writer(), .prompt_param = "messages"};
  job.prompts = {as_bad_request("messages", [&] { return model.tokenizer->encode(text); })};
  const bool is_forced = wanted.tool_choice.is_forced();
  if (std::vector<std::string> functions = wanted.function_names(); !functions.empty())
    job.tools = {.functions = std::move(functions),
                 .is_forced = is_forced,
                 .only_one = !wanted.parallel_tool_calls,
                 .tools = std::make_shared<const nlohmann::ordered_json>(wanted.tools)};
  if (is_forced) job.schema_param = "tools";
  generate(service, request, std::move(exchange), std::move(job));
}

}  // namespace colossal::serve
