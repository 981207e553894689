#include "colossal/infer/prompts/conversation.h"

#include "colossal/base/error.h"
#include "colossal/infer/prompts/answer_stream.h"

namespace colossal::infer {

Conversation::Conversation(Engine& engine, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
                           std::vector<int64_t> end_ids, ConversationOptions options)
    : engine_(engine),
      tokenizer_(tokenizer),
      template_(chat_template),
      end_ids_(std::move(end_ids)),
      options_(std::move(options)),
      schemas_(tokenizer, end_ids_) {
  schemas_.constraint(options_.options.json_schema);  // refuses the schema before the first message
  refuse_unused(changed_options(options_.options), unused(), "a conversation", "conversation");
  begin(options_.system);
}

void Conversation::begin(const std::string& system) {
  messages_ = nlohmann::ordered_json::array();
  tokens_ = 0;
  if (!system.empty()) add("system", system);
}

void Conversation::add(const char* role, const std::string& content) {
  messages_.push_back({{"role", role}, {"content", content}});
}

std::vector<int64_t> Conversation::ids() const {
  text::Chat chat;
  chat.messages = messages_;
  chat.add_generation_prompt = true;
  chat.variables = options_.variables;
  return tokenizer_.encode(template_.render(chat).text);  // the template already writes special tokens
}

FinishReason Conversation::answer(const std::string& said, const std::function<bool(const std::string&)>& emit) {
  const nlohmann::ordered_json before = messages_;
  add("user", said);
  int64_t id = 0;
  std::vector<int64_t> tokens;
  FinishReason finish_reason = FinishReason::None;
  std::string error;
  const auto hear = [&](const Event& event) {
    if (event.is_answer()) tokens.push_back(event.token);
    finish_reason = event.finish_reason, error = event.error;
  };
  try {
    Request request{.prompt = ids(),
                    .end_ids = end_ids_,
                    .options = options_.options,
                    .constraint = schemas_.constraint(options_.options.json_schema)};
    request.options.sampling.seed += answers_;
    tokens_ = static_cast<int64_t>(request.prompt.size());
    id = engine_.add(std::move(request), hear);
  } catch (...) {
    messages_ = before;
    throw;
  }
  ++answers_;
  AnswerStream stream(tokenizer_, options_.options.stop);
  std::string answer;
  const auto take = [&](const std::string& text) {
    answer += text;
    return text.empty() || emit(text);
  };
  bool is_wanted = true;
  try {
    while (finish_reason == FinishReason::None) {
      tokens.clear();
      engine_.step();
      require(finish_reason != FinishReason::Failed, "conversation", error);
      for (size_t i = 0; i < tokens.size() && is_wanted && !stream.is_stopped(); ++i)
        ++tokens_, is_wanted = take(stream.push(tokens[i]));
      if (is_wanted && !stream.is_stopped()) continue;
      engine_.drop(id);
      if (finish_reason == FinishReason::None) finish_reason = FinishReason::Cancelled;
    }
  } catch (...) {
    engine_.drop(id);
    messages_ = before;
    throw;
  }
  take(stream.finish());
  if (stream.is_stopped()) finish_reason = FinishReason::AtStop;
  add("assistant", answer);
  return finish_reason;
}

}  // namespace colossal::infer
