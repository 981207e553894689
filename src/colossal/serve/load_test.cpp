#include "colossal/serve/load_test.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/seed.h"
#include "colossal/http/client.h"

namespace colossal::serve {
namespace {

using LoadJson = nlohmann::ordered_json;
using LoadTime = http::Client::Time;

constexpr size_t kMaxShownBody = 200;  // bytes of an unreadable answer that a message shows

/// Returns a member of an object; nullptr if it is missing or null, or if `value` is not an object.
const LoadJson* member_of(const LoadJson* value, const char* name) {
  if (!value || !value->is_object()) return nullptr;
  const auto found = value->find(name);
  return found == value->end() || found->is_null() ? nullptr : &*found;
}

std::string text_or_empty(const LoadJson* value) {
  return value && value->is_string() ? value->get<std::string>() : "";
}

/// Returns the message of an error in the forms that servers use: {"error": {"message"}}, {"error": TEXT},
/// {"message"} and {"detail"}; "" if there is none.
std::string error_message_of(const LoadJson& answer) {
  const LoadJson* error = member_of(&answer, "error");
  for (const LoadJson* text :
       {member_of(error, "message"), error, member_of(&answer, "message"), member_of(&answer, "detail")})
    if (std::string message = text_or_empty(text); !message.empty()) return message;
  return error ? json_line(*error) : "";
}

std::string shown_body(const std::string& body) {
  if (body.empty()) return "an empty answer";
  return body.size() <= kMaxShownBody ? body : body.substr(0, kMaxShownBody) + "...";
}

/// One request and what came back.
struct Answer {
  std::string failure{};  ///< "" = complete
  LoadTime begin{}, end{};
  int64_t tokens = 0;
  std::vector<LoadTime> texts{};  ///< times of events with text
};

/// Reads the objects of one answer into an Answer.
class AnswerReader {
 public:
  explicit AnswerReader(Answer& answer) : answer_(answer) {}

  /// Reads a line of a stream. Returns false if the answer has failed.
  bool read_line(std::string_view line, LoadTime when) {
    constexpr std::string_view kData = "data:";
    if (!line.starts_with(kData)) return true;  // a comment, another field, or the end of an event
    line.remove_prefix(kData.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (line == "[DONE]") {
      is_done_ = true;
      return true;
    }
    const LoadJson event = LoadJson::parse(line, nullptr, false);
    if (event.is_discarded())
      answer_.failure = "an event must be JSON: got " + shown_body(std::string(line));
    else
      read_object(event, when);
    return answer_.failure.empty();
  }

  /// Reads the end of the answer.
  void finish(const http::Reply& reply, LoadTime when) {
    if (!answer_.failure.empty()) return;
    const LoadJson body = LoadJson::parse(reply.body, nullptr, false);
    if (reply.status != 200) {
      const std::string message = body.is_discarded() ? "" : error_message_of(body);
      answer_.failure = concat("HTTP ", reply.status, ": ", message.empty() ? shown_body(reply.body) : message);
    } else if (!reply.is_complete && !is_done_) {
      answer_.failure = "the answer broke off";
    } else if (!reply.body.empty()) {
      if (!body.is_discarded()) read_object(body, when);
      if (answer_.failure.empty() && usage_ < 0)
        answer_.failure = "an answer that is not a stream must have its usage: got " + shown_body(reply.body);
    } else if (!is_done_) {
      answer_.failure = "the stream ended without [DONE]";
    }
    answer_.tokens = usage_ >= 0 ? usage_ : static_cast<int64_t>(answer_.texts.size());
  }

 private:
  void read_object(const LoadJson& object, LoadTime when) {
    if (member_of(&object, "error")) {
      answer_.failure = error_message_of(object);
      return;
    }
    const LoadJson* usage = member_of(member_of(&object, "usage"), "completion_tokens");
    if (usage && usage->is_number_integer()) usage_ = usage->get<int64_t>();
    const LoadJson* choices = member_of(&object, "choices");
    if (!choices || !choices->is_array()) return;
    for (const LoadJson& choice : *choices)
      if (!text_or_empty(member_of(&choice, "text")).empty()) answer_.texts.push_back(when);
  }

  Answer& answer_;
  int64_t usage_ = -1;  // -1 = not reported
  bool is_done_ = false;
};

/// Returns the name of the first model that the server lists; "" if it lists none. Some servers demand the name in a
/// request. An error is ignored, because the requests report it.
std::string first_model(http::Client& client) {
  try {
    const http::Reply reply = client.get("/v1/models");
    const LoadJson body = LoadJson::parse(reply.body, nullptr, false);
    if (reply.status != 200 || body.is_discarded()) return "";
    const LoadJson* models = member_of(&body, "data");
    return models && models->is_array() && !models->empty() ? text_or_empty(member_of(&models->front(), "id")) : "";
  } catch (const Error&) {
    return "";
  }
}

std::string body_of(const LoadTestOptions& options, const LoadPrompt& prompt, const std::string& model) {
  LoadJson body;
  if (!model.empty()) body["model"] = model;
  body["prompt"] = prompt.text;
  body["max_tokens"] = prompt.max_tokens;
  body["temperature"] = 0;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  return body.dump();
}

Answer answer_to(http::Client& client, const std::string& body) {
  Answer answer;
  AnswerReader reader(answer);
  answer.begin = std::chrono::steady_clock::now();
  try {
    const http::Reply reply = client.post(
        "/v1/completions", body, [&](std::string_view line, LoadTime when) { return reader.read_line(line, when); });
    answer.end = std::chrono::steady_clock::now();
    reader.finish(reply, answer.end);
  } catch (const Error& error) {
    answer.end = std::chrono::steady_clock::now();
    answer.failure = error.message();
  }
  return answer;
}

double load_seconds(LoadTime from, LoadTime to) { return std::chrono::duration<double>(to - from).count(); }

LoadResult result_of(const std::vector<Answer>& answers, LoadTime start) {
  LoadResult result{.requests = static_cast<int64_t>(answers.size())};
  for (const Answer& answer : answers) {
    result.seconds = std::max(result.seconds, load_seconds(start, answer.end));
    if (!answer.failure.empty()) {
      if (result.failed++ == 0) result.failure = answer.failure;
      continue;
    }
    result.tokens += answer.tokens;
    result.request.push_back(load_seconds(answer.begin, answer.end));
    for (size_t i = 0; i < answer.texts.size(); ++i) {
      result.arrivals.push_back(load_seconds(start, answer.texts[i]));
      if (i == 0)
        result.first_token.push_back(load_seconds(answer.begin, answer.texts[0]));
      else
        result.between_tokens.push_back(load_seconds(answer.texts[i - 1], answer.texts[i]));
    }
  }
  std::sort(result.arrivals.begin(), result.arrivals.end());
  return result;
}

}  // namespace

std::vector<LoadPrompt> built_in_prompts(int64_t count, int64_t max_tokens) {
  using Parts = std::array<const char*, 8>;
  // The longest three sentences have 186 characters, which leaves 14 for the number.
  constexpr Parts kWho{"the old sailor", "a young fox",     "my sister",       "the king's cook",
                       "a tired robot",  "our new teacher", "the tall farmer", "a blue bird"};
  constexpr Parts kDoes{"finds", "paints", "loses", "repairs", "hides", "sells", "dreams of", "asks about"};
  constexpr Parts kWhat{"a red kite",     "the broken clock", "seven eggs",   "a map of the sea",
                        "the last train", "a heavy drum",     "two lanterns", "the garden gate"};
  constexpr Parts kWhere{"behind the mill", "in the rain",     "under the bridge", "before breakfast",
                         "near the river",  "after the storm", "on the roof",      "at the market"};
  std::vector<LoadPrompt> prompts;
  for (int64_t i = 0; i < count; ++i) {
    std::string text = std::to_string(i + 1) + ":";
    for (uint64_t sentence = 0; sentence < 3; ++sentence) {
      uint64_t bits = derive_seed(static_cast<uint64_t>(i), sentence);
      for (const Parts& parts : {kWho, kDoes, kWhat, kWhere}) {
        text += concat(' ', parts[bits % parts.size()]);
        bits /= parts.size();
      }
      text += '.';
    }
    prompts.push_back({std::move(text), max_tokens});
  }
  return prompts;
}

LoadResult run_load(const LoadTestOptions& options) {
  require(!options.prompts.empty(), "load", "a load needs at least one prompt");
  std::vector<http::Client> clients;
  for (int64_t i = 0; i < options.clients; ++i)
    clients.emplace_back(http::ClientOptions{.url = options.url, .key = options.key, .timeout = options.timeout});
  const std::vector<std::string> models =
      options.models.empty() ? std::vector{first_model(clients.front())} : options.models;
  std::vector<std::string> bodies;  // one for each pair of prompt and model that occurs
  const size_t pairs = std::min(std::lcm(options.prompts.size(), models.size()), static_cast<size_t>(options.requests));
  for (size_t i = 0; i < pairs; ++i)
    bodies.push_back(body_of(options, options.prompts[i % options.prompts.size()], models[i % models.size()]));
  std::vector<Answer> answers(static_cast<size_t>(options.requests));
  std::atomic<size_t> next{0};
  const LoadTime start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> threads;  // joined at the end of the block
    for (http::Client& client : clients)
      threads.emplace_back([&] {
        for (size_t i; (i = next++) < answers.size();) answers[i] = answer_to(client, bodies[i % bodies.size()]);
      });
  }
  return result_of(answers, start);
}

}  // namespace colossal::serve
