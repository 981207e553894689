#include "colossal/serve/chat_prompt.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

bool is_system(const ordered_json& message) { return message["role"] == "system" || message["role"] == "developer"; }

}  // namespace

std::string chat_prompt(const ChatRequest& request, const text::ChatTemplate* chat_template,
                        const std::string& system) {
  if (!chat_template)
    throw http::RequestError(
        400, "the model has no chat template: start the server with --chat-template FILE, or use /v1/completions",
        "messages");
  text::Chat chat;
  chat.add_generation_prompt = true;
  chat.variables = request.variables;
  if (request.tool_choice.kind != ToolChoice::kNone) chat.tools = request.tools;
  if (!system.empty() && std::none_of(request.messages.begin(), request.messages.end(), is_system))
    chat.messages.push_back({{"role", "system"}, {"content", system}});
  chat.messages.insert(chat.messages.end(), request.messages.begin(), request.messages.end());
  try {
    for (const auto& [name, param] : request.variable_params)
      if (!chat_template->mentions(chat, name))
        throw http::RequestError(
            400, concat(param, " must be a variable of the chat template: got one that it does not read; leave it out"),
            param);
    if (!chat_template->mentions(chat, "developer"))
      for (ordered_json& message : chat.messages)
        if (message["role"] == "developer") message["role"] = "system";
    std::string text = chat_template->render(chat).text;
    if (chat.tools.is_null()) return text;
    chat.tools = nullptr;
    if (chat_template->render(chat).text == text)
      throw http::RequestError(
          400, "the model's chat template does not render tools: leave out tools, or use another model", "tools");
    return text;
  } catch (const text::TemplateError& error) {
    throw http::RequestError(400, error.nameless_message(), "messages");
  } catch (const Error& error) {
    throw http::RequestError(400, http::without_folders(error.message()), "messages");
  }
}

void fit_to_room(infer::GenerationOptions& options, int64_t prompt_tokens, int64_t max_length, const std::string& param,
                 int64_t even_length) {
  if (options.max_tokens == kAsManyAsFit && prompt_tokens <= even_length)
    max_length = std::min(max_length, even_length);
  const int64_t room = max_length - prompt_tokens + 1;  // the model does not read the last token of an answer
  if (options.attention_sinks >= 0) {
    if (options.max_tokens == kAsManyAsFit) options.max_tokens = std::max<int64_t>(room, 1);
    return;
  }
  if (prompt_tokens > max_length)
    throw http::RequestError(400,
                             concat(param, " must fit the maximum context length of ", max_length, " tokens: got ",
                                    prompt_tokens, " tokens; shorten it"),
                             param, "context_length_exceeded");
  options.max_tokens = std::min(options.max_tokens, room);
}

}  // namespace colossal::serve
