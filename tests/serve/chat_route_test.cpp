// POST /v1/chat/completions over a scripted replica.
#include "serve/test_service.h"

namespace colossal::serve_test::chat_route_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kPath = "/v1/chat/completions";
constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}])";

std::string chat_with(const std::string& members) {
  return R"({"messages": [{"role": "user", "content": "Hi"}])" + (members.empty() ? "" : ", " + members) + "}";
}

std::string prompt_of(const TestService& test) {
  const std::vector<int64_t> ids = test.replica.added().at(0).prompt;
  return {ids.begin(), ids.end()};
}

TEST(ChatRoute, AnswersInOnePiece) {
  TestService test;
  test.replica.play("Hello");
  const Json answer = test.answer(kPath, chat_with(""));
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["choices"][0]["message"].dump(), R"({"role":"assistant","content":"Hello","refusal":null})");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(prompt_of(test), "user:Hi;assistant:");
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 18);
  EXPECT_EQ(test.replica.added()[0].options.max_tokens, 64 - 18 + 1);  // as many as fit
}

TEST(ChatRoute, BeginsChoicesOfStreamsWithTheRole) {
  TestService test;
  test.replica.play("ab");
  const Stream stream = test.stream(kPath, chat_with(R"("stream": true, "n": 2)"));
  for (const int64_t index : {0, 1}) {
    EXPECT_EQ(stream.events[index]["choices"][0]["index"], index);
    EXPECT_EQ(stream.events[index]["choices"][0]["delta"]["role"], "assistant");
    EXPECT_THAT(stream.texts(index), ElementsAre("", "a", "b", ""));
  }
  EXPECT_EQ(stream.events.back()["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(stream.is_done);
}

TEST(ChatRoute, BeginsWithTheServersSystemMessage) {
  TestOptions options;
  options.service.defaults.system = "Rhyme";
  TestService test(options);
  test.answer(kPath, chat_with(""));
  EXPECT_EQ(prompt_of(test), "system:Rhyme;user:Hi;assistant:");
}

TEST(ChatRoute, ReadsCallsFromAnswers) {
  TestService test;
  test.replica.play(R"(<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>)");
  const Json choice = test.answer(kPath, chat_with(kTools))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"city":"Rome"})");
  EXPECT_EQ(prompt_of(test), "1 tools;user:Hi;assistant:");
  EXPECT_EQ(test.replica.added()[0].options.json_schema, "");
}

TEST(ChatRoute, StreamsCallsWhenTheyAreComplete) {
  TestService test;
  const std::string call = R"(<tool_call>{"name": "weather", "arguments": {}}</tool_call>)";
  test.replica.play("See " + call + call);
  const Stream stream = test.stream(kPath, chat_with(concat(kTools, R"(, "stream": true)")));
  std::vector<int64_t> indices;
  for (const Json& event : stream.events)
    for (const Json& one : event["choices"][0]["delta"].value("tool_calls", Json::array()))
      indices.push_back(one["index"]);
  EXPECT_THAT(indices, ElementsAre(0, 1));
  EXPECT_EQ(stream.events.back()["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ChatRoute, ConstrainsForcedCalls) {
  TestService test;
  test.replica.play(R"({"name": "weather", "arguments": {}})");
  const Json choice = test.answer(kPath, chat_with(concat(kTools, R"(, "tool_choice": "required")")))["choices"][0];
  EXPECT_EQ(choice["message"]["content"], nullptr);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "weather");
  EXPECT_THAT(test.replica.added()[0].options.json_schema, HasSubstr("weather"));
  EXPECT_THAT(test.schemas.kept(), ElementsAre(test.replica.added()[0].options.json_schema));  // compiled before
}

TEST(ChatRoute, ReportsLogProbabilities) {
  TestService test;
  test.replica.play([](const serve::Generation&) {
    std::vector<infer::Event> events = events_of("a");
    events[0].log_probabilities = infer::LogProbabilities{-0.5, {{'z', -0.25}}};
    return events;
  });
  const Json choice = test.answer(kPath, chat_with(R"("logprobs": true, "top_logprobs": 1)"))["choices"][0];
  EXPECT_EQ(
      choice["logprobs"]["content"][0].dump(),
      R"({"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"z","logprob":-0.25,"bytes":[122]}]})");
}

}  // namespace
}  // namespace colossal::serve_test::chat_route_test
