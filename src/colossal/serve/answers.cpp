#include "colossal/serve/answers.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "colossal/base/base64.h"
#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/unicode.h"

namespace colossal::serve {
namespace {

using nlohmann::ordered_json;

constexpr const char* kCompletion = "text_completion";
constexpr const char* kChat = "chat.completion";
constexpr const char* kChatChunk = "chat.completion.chunk";

ordered_json usage_json(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

/// Returns an answer or event on one line. `usage` is null if it has none.
std::string answer_line(const AnswerHead& head, const char* object, ordered_json choices, const ordered_json* usage) {
  const char* prefix = object == kCompletion ? "cmpl-" : "chatcmpl-";
  ordered_json json = {{"id", prefix + head.id},
                       {"object", object},
                       {"created", head.created},
                       {"model", head.model},
                       {"choices", std::move(choices)}};
  if (usage) json["usage"] = *usage;
  return json_line(json);
}

std::string answer_line(const AnswerHead& head, const char* object, ordered_json choices, const Usage& usage) {
  const ordered_json json = usage_json(usage);
  return answer_line(head, object, std::move(choices), &json);
}

/// JSON has no infinity: tokens that a constraint or bias forbids get a low number.
double finite(double logprob) {
  constexpr double kLowest = -9999;
  return std::max(logprob, kLowest);
}

/// Returns the text of a token. Bytes that are no characters are spelled as OpenAI does, "bytes:\xe2\x80", so that
/// different tokens have different texts.
std::string shown_token(const std::string& bytes) {
  if (text::is_utf8(bytes)) return bytes;
  constexpr const char* kDigits = "0123456789abcdef";
  std::string shown = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    shown += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return shown;
}

ordered_json completion_logprobs(const std::vector<ReportedToken>& tokens) {
  ordered_json texts = ordered_json::array(), own = texts, best = texts, offsets = texts;
  for (const ReportedToken& token : tokens) {
    texts.push_back(shown_token(token.bytes));
    offsets.push_back(token.offset);
    own.push_back(token.logprob ? ordered_json(finite(*token.logprob)) : ordered_json());
    if (!token.logprob) {
      best.push_back(nullptr);
      continue;
    }
    ordered_json alternatives = ordered_json::object();
    for (const auto& [bytes, logprob] : token.best) alternatives.emplace(shown_token(bytes), finite(logprob));
    alternatives.emplace(shown_token(token.bytes), finite(*token.logprob));  // unless it is one of them
    best.push_back(std::move(alternatives));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(own)},
          {"top_logprobs", std::move(best)},
          {"text_offset", std::move(offsets)}};
}

ordered_json chat_token(const std::string& bytes, double logprob) {
  ordered_json numbers = ordered_json::array();
  for (const char byte : bytes) numbers.push_back(static_cast<unsigned char>(byte));
  return {{"token", shown_token(bytes)}, {"logprob", finite(logprob)}, {"bytes", std::move(numbers)}};
}

ordered_json chat_logprobs(const std::vector<ReportedToken>& tokens) {
  ordered_json content = ordered_json::array();
  for (const ReportedToken& token : tokens) {
    ordered_json one = chat_token(token.bytes, token.logprob.value_or(0));
    one["top_logprobs"] = ordered_json::array();
    for (const auto& [bytes, logprob] : token.best) one["top_logprobs"].push_back(chat_token(bytes, logprob));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

ordered_json text_or_null(const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); }

ordered_json choice_json(int64_t index, const char* content_name, ordered_json content, ordered_json logprobs,
                         const ChoicePart& part) {
  return {{"index", index},
          {content_name, std::move(content)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", text_or_null(part.finish_reason)}};
}

ordered_json completion_choice(const AnswerHead& head, int64_t index, const ChoicePart& part) {
  return choice_json(index, "text", text::valid_utf8(part.text),
                     head.with_logprobs ? completion_logprobs(part.tokens) : ordered_json(), part);
}

/// `first` is the number of calls before these, and `has_index` is true for events, whose calls are numbered.
ordered_json calls_json(const AnswerHead& head, int64_t choice, const std::vector<ToolCall>& calls, int64_t first,
                        bool has_index) {
  ordered_json list = ordered_json::array();
  for (const ToolCall& call : calls) {
    ordered_json one = ordered_json::object();
    if (has_index) one["index"] = first;
    one["id"] = concat("call_", head.id, "_", choice, "_", first++);
    one["type"] = "function";
    one["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    list.push_back(std::move(one));
  }
  return list;
}

ordered_json chat_choice(const AnswerHead& head, int64_t index, const char* content_name, ordered_json content,
                         const ChoicePart& part) {
  return choice_json(index, content_name, std::move(content),
                     head.with_logprobs ? chat_logprobs(part.tokens) : ordered_json(), part);
}

std::string event_of(const AnswerHead& head, const char* object, ordered_json choice) {
  const ordered_json none;  // the usage follows in an event of its own
  return answer_line(head, object, ordered_json::array({std::move(choice)}), head.with_usage ? &none : nullptr);
}

std::string base64_of(const std::vector<float>& vector) {
  std::string bytes;
  bytes.reserve(vector.size() * 4);
  for (const float value : vector) {
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(bits >> shift & 255);
  }
  return base64(bytes);
}

ordered_json model_object(const ShownModel& model) {
  ordered_json object = {{"id", model.name}, {"object", "model"}, {"created", model.created}, {"owned_by", "colossal"}};
  if (model.max_model_len > 0) object["max_model_len"] = model.max_model_len;
  if (!model.parent.empty()) object["parent"] = model.parent;
  return object;
}

}  // namespace

std::string completion_json(const AnswerHead& head, const std::vector<ChoicePart>& choices, const Usage& usage) {
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < choices.size(); ++i)
    list.push_back(completion_choice(head, static_cast<int64_t>(i), choices[i]));
  return answer_line(head, kCompletion, std::move(list), usage);
}

std::string chat_json(const AnswerHead& head, const std::vector<ChoicePart>& choices, const Usage& usage) {
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoicePart& part = choices[i];
    const auto index = static_cast<int64_t>(i);
    ordered_json message = {{"role", "assistant"},
                            {"content", part.calls.empty() ? ordered_json(part.text) : text_or_null(part.text)},
                            {"refusal", nullptr}};
    if (!part.calls.empty()) message["tool_calls"] = calls_json(head, index, part.calls, 0, false);
    list.push_back(chat_choice(head, index, "message", std::move(message), part));
  }
  return answer_line(head, kChat, std::move(list), usage);
}

std::string completion_event(const AnswerHead& head, int64_t index, const ChoicePart& part) {
  return event_of(head, kCompletion, completion_choice(head, index, part));
}

std::string chat_event(const AnswerHead& head, int64_t index, const ChoicePart& part, int64_t first_call) {
  ordered_json delta = ordered_json::object();
  if (!part.text.empty()) delta["content"] = part.text;
  if (!part.calls.empty()) delta["tool_calls"] = calls_json(head, index, part.calls, first_call, true);
  return event_of(head, kChatChunk, chat_choice(head, index, "delta", std::move(delta), part));
}

std::string chat_role_event(const AnswerHead& head, int64_t index) {
  AnswerHead without = head;
  without.with_logprobs = false;
  const ordered_json delta = {{"role", "assistant"}, {"content", ""}};
  return event_of(head, kChatChunk, chat_choice(without, index, "delta", delta, {}));
}

std::string completion_usage_event(const AnswerHead& head, const Usage& usage) {
  return answer_line(head, kCompletion, ordered_json::array(), usage);
}

std::string chat_usage_event(const AnswerHead& head, const Usage& usage) {
  return answer_line(head, kChatChunk, ordered_json::array(), usage);
}

std::string model_json(const ShownModel& model) { return json_line(model_object(model)); }

std::string models_json(const std::vector<ShownModel>& models) {
  ordered_json data = ordered_json::array();
  for (const ShownModel& model : models) data.push_back(model_object(model));
  return json_line({{"object", "list"}, {"data", std::move(data)}});
}

std::string embeddings_json(const std::string& model, const std::vector<std::vector<float>>& vectors, bool base64,
                            int64_t prompt_tokens) {
  ordered_json data = ordered_json::array();
  for (size_t i = 0; i < vectors.size(); ++i) {
    ordered_json vector;
    if (base64) {
      vector = base64_of(vectors[i]);
    } else {
      vector = ordered_json::array();
      for (const float value : vectors[i]) vector.push_back(shortest_double(value));
    }
    data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(vector)}});
  }
  return json_line({{"object", "list"},
                    {"data", std::move(data)},
                    {"model", model},
                    {"usage", {{"prompt_tokens", prompt_tokens}, {"total_tokens", prompt_tokens}}}});
}

std::string images_json(int64_t created, const std::vector<ShownPicture>& pictures,
                        const std::vector<std::string>& notices) {
  ordered_json data = ordered_json::array();
  for (const ShownPicture& picture : pictures)
    data.push_back({{"b64_json", base64(picture.png)}, {"seed", picture.seed}});
  ordered_json answer{{"created", created}, {"data", std::move(data)}, {"output_format", "png"}};
  if (!notices.empty()) answer["warnings"] = notices;
  return json_line(answer);
}

std::string tokenize_json(const std::vector<int64_t>& tokens, int64_t max_model_len) {
  return json_line({{"tokens", tokens}, {"count", tokens.size()}, {"max_model_len", max_model_len}});
}

std::string detokenize_json(const std::string& text) { return json_line({{"prompt", text::valid_utf8(text)}}); }

}  // namespace colossal::serve
