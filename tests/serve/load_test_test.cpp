// The load test, against servers that answer by a script.
#include "colossal/serve/load_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/http/server.h"
#include "support/thrown_message.h"

namespace colossal::serve::load_test_test {
namespace {

using http::EventStream;
using http::Exchange;
using http::Request;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

constexpr double kPatience = 60;  // seconds after which a client that hangs gives up

std::string text_event(const std::string& text) { return json{{"choices", {{{"index", 0}, {"text", text}}}}}.dump(); }

std::string usage_event(int64_t tokens) {
  return json{{"choices", json::array()}, {"usage", {{"prompt_tokens", 7}, {"completion_tokens", tokens}}}}.dump();
}

/// Answers with a stream of these events.
http::Handler stream_of(std::vector<std::string> events) {
  return [events](const Request&, Exchange exchange) {
    EventStream stream = exchange.begin_events();
    for (const std::string& event : events) stream.send(event);
    stream.end();
  };
}

/// A server whose completions come from a function. It lists the model "tiny".
class ScriptedServer {
 public:
  explicit ScriptedServer(http::Handler complete, http::Keys keys = {})
      : server_({.port = 0, .keys = std::move(keys)},
                {{"POST", "/v1/completions", std::move(complete)},
                 {"GET", "/v1/models", [](const Request&, Exchange exchange) {
                    exchange.answer({.body = R"({"data": [{"id": "tiny"}, {"id": "other"}]})"});
                  }}}) {}

  LoadTestOptions load(int64_t clients, int64_t requests) const {
    return {.url = server_.url(),
            .clients = clients,
            .requests = requests,
            .prompts = built_in_prompts(requests, 5),
            .timeout = kPatience};
  }

 private:
  http::Server server_;
};

/// Returns the failure of one request that gets this answer.
std::string failure_of(const http::Handler& complete) {
  const ScriptedServer server(complete);
  const LoadResult result = run_load(server.load(1, 1));
  EXPECT_EQ(result.failed, 1);
  EXPECT_EQ(result.tokens, 0);
  EXPECT_THAT(result.request, SizeIs(0));
  return result.failure;
}

TEST(LoadTest, CountsTokensByUsage) {
  const ScriptedServer server(
      stream_of({text_event("a"), text_event(""), text_event("b"), text_event("c"), usage_event(5), "[DONE]"}));
  const LoadResult result = run_load(server.load(3, 10));
  EXPECT_EQ(result.requests, 10);
  EXPECT_EQ(result.failed, 0) << result.failure;
  EXPECT_EQ(result.tokens, 50);
  EXPECT_THAT(result.first_token, SizeIs(10));
  EXPECT_THAT(result.between_tokens, AllOf(SizeIs(20), Each(Ge(0))));
  EXPECT_THAT(result.request, AllOf(SizeIs(10), Each(Le(result.seconds))));
  EXPECT_THAT(result.arrivals, AllOf(SizeIs(30), Each(Le(result.seconds))));
  EXPECT_TRUE(std::is_sorted(result.arrivals.begin(), result.arrivals.end()));
}

TEST(LoadTest, CountsTextsWithoutUsage) {
  const ScriptedServer server(stream_of({text_event("a"), text_event(""), text_event("b"), "[DONE]"}));
  EXPECT_EQ(run_load(server.load(2, 4)).tokens, 8);
}

TEST(LoadTest, ReadsAnswersThatAreNotStreams) {
  const ScriptedServer server([](const Request&, Exchange exchange) {
    exchange.answer({.body = R"({"choices": [{"text": "abc"}], "usage": {"completion_tokens": 3}})"});
  });
  const LoadResult result = run_load(server.load(2, 4));
  EXPECT_EQ(result.failed, 0) << result.failure;
  EXPECT_EQ(result.tokens, 12);
  EXPECT_EQ(result.first_token, result.request);
  EXPECT_THAT(result.between_tokens, SizeIs(0));
}

TEST(LoadTest, ReportsFailures) {
  EXPECT_EQ(failure_of([](const Request&, Exchange exchange) {
              exchange.answer(http::ErrorAnswer{.status = 429, .message = "the queue is full"});
            }),
            "HTTP 429: the queue is full");
  EXPECT_EQ(failure_of([](const Request&, Exchange exchange) {
              exchange.answer({.status = 500, .body = "not JSON", .content_type = "text/plain"});
            }),
            "HTTP 500: not JSON");
  EXPECT_EQ(failure_of([](const Request&, Exchange exchange) {
              exchange.answer({.status = 422, .body = R"({"detail": "no such field"})"});
            }),
            "HTTP 422: no such field");
  EXPECT_EQ(failure_of(stream_of({text_event("a"), R"({"error": {"message": "rank 1 has died"}})"})),
            "rank 1 has died");
  EXPECT_EQ(failure_of(stream_of({text_event("a"), usage_event(1)})), "the stream ended without [DONE]");
  EXPECT_EQ(failure_of(stream_of({"{\"choices\": ["})), "an event must be JSON: got {\"choices\": [");
  EXPECT_EQ(failure_of([](const Request&, Exchange exchange) { exchange.begin_events().send(text_event("a")); }),
            "the answer broke off");
  EXPECT_EQ(failure_of([](const Request&, Exchange exchange) { exchange.answer({.body = "{}"}); }),
            "an answer that is not a stream must have its usage: got {}");
}

TEST(LoadTest, CountsFailuresAndAnswersApart) {
  std::atomic<int> calls{0};
  const http::Handler good = stream_of({text_event("a"), usage_event(2), "[DONE]"});
  const ScriptedServer server([&](const Request& request, Exchange exchange) {
    const int call = calls++;
    if (call % 3 == 0) return good(request, exchange);
    if (call % 3 == 1) throw http::RequestError(429, concat("call ", call));
    exchange.begin_events().send(text_event("b"));  // without an end
  });
  const LoadResult result = run_load(server.load(1, 9));
  EXPECT_EQ(result.requests, 9);
  EXPECT_EQ(result.failed, 6);
  EXPECT_EQ(result.failure, "HTTP 429: call 1");
  EXPECT_EQ(result.tokens, 6);
  EXPECT_THAT(result.first_token, SizeIs(3));
  EXPECT_THAT(result.arrivals, SizeIs(3));
}

TEST(LoadTest, SendsKeysModelAndOptions) {
  std::mutex mutex;
  std::vector<json> bodies;
  const http::Handler good = stream_of({text_event("a"), "[DONE]"});
  const ScriptedServer server(
      [&](const Request& request, Exchange exchange) {
        {
          const std::lock_guard lock(mutex);
          bodies.push_back(json::parse(request.body));
        }
        good(request, exchange);
      },
      http::Keys({"the-right-key"}));
  LoadTestOptions load = server.load(2, 6);
  EXPECT_THAT(run_load(load).failure, HasSubstr("HTTP 401: "));
  load.key = "the-right-key";
  load.ignore_eos = true;
  load.prompts = {{"one", 3}, {"two", 4}};
  EXPECT_EQ(run_load(load).failed, 0);
  std::map<std::string, int> prompts;
  for (const json& body : bodies) {
    ++prompts[body.at("prompt")];
    EXPECT_EQ(body.at("max_tokens"), body["prompt"] == "one" ? 3 : 4);
    EXPECT_EQ(body.at("model"), "tiny");
    EXPECT_EQ(body.at("temperature"), 0);
    EXPECT_EQ(body.at("stream"), true);
    EXPECT_EQ(body.at("stream_options").at("include_usage"), true);
    EXPECT_EQ(body.at("ignore_eos"), true);
  }
  EXPECT_EQ(prompts, (std::map<std::string, int>{{"one", 3}, {"two", 3}}));
}

TEST(LoadTest, NamesModelsInRotation) {
  std::mutex mutex;
  std::map<std::string, std::map<std::string, int>> counts;
  const http::Handler good = stream_of({text_event("a"), "[DONE]"});
  const ScriptedServer server([&](const Request& request, Exchange exchange) {
    const json body = json::parse(request.body);
    {
      const std::lock_guard lock(mutex);
      ++counts[body.at("model")][body.at("prompt")];
    }
    good(request, exchange);
  });
  LoadTestOptions load = server.load(2, 12);
  load.models = {"poet", "coder", "base"};
  load.prompts = {{"one", 3}, {"two", 4}};
  EXPECT_EQ(run_load(load).failed, 0);
  ASSERT_EQ(counts.size(), 3U);
  for (const auto& [model, prompts] : counts)
    EXPECT_EQ(prompts, (std::map<std::string, int>{{"one", 2}, {"two", 2}})) << model;
}

// Answers are held until as many requests have come as there are clients: with fewer at a time the load would hang.
TEST(LoadTest, SendsOneRequestAtATimePerClient) {
  constexpr size_t kClients = 3;
  std::mutex mutex;
  std::vector<Exchange> held;
  size_t most = 0;
  const ScriptedServer server([&](const Request&, Exchange exchange) {
    const std::lock_guard lock(mutex);
    held.push_back(exchange);
    most = std::max(most, held.size());
    if (held.size() < kClients) return;
    std::vector<Exchange> answered = std::move(held);
    held.clear();
    for (Exchange& one : answered) stream_of({text_event("a"), "[DONE]"})({}, one);
  });
  const LoadResult result = run_load(server.load(kClients, 4 * kClients));
  EXPECT_EQ(result.failed, 0) << result.failure;
  EXPECT_EQ(most, kClients);
}

TEST(LoadTest, ReportsServersThatAreAbsent) {
  std::string url;
  {
    const ScriptedServer server(stream_of({}));
    url = server.load(1, 1).url;
  }
  LoadTestOptions load{.url = url, .clients = 2, .requests = 5, .prompts = built_in_prompts(5, 5)};
  const LoadResult result = run_load(load);
  EXPECT_EQ(result.failed, 5);
  EXPECT_THAT(result.failure, HasSubstr("is the server running?"));
  load.url = "localhost:8000";
  EXPECT_THAT(test::thrown_message([&] { run_load(load); }), HasSubstr("http://HOST[:PORT][/PREFIX]"));
  load.prompts.clear();
  EXPECT_THAT(test::thrown_message([&] { run_load(load); }), HasSubstr("[load] a load needs at least one prompt"));
}

TEST(BuiltInPrompts, BeginDifferentlyAndAreShort) {
  const std::vector<LoadPrompt> prompts = built_in_prompts(5000, 9);
  std::set<std::string> first_words, rests;
  for (const LoadPrompt& prompt : prompts) {
    EXPECT_LE(prompt.text.size(), 200U) << prompt.text;
    EXPECT_GE(prompt.text.size(), 80U) << prompt.text;
    EXPECT_EQ(prompt.max_tokens, 9);
    const size_t blank = prompt.text.find(' ');
    first_words.insert(prompt.text.substr(0, blank));
    rests.insert(prompt.text.substr(blank));
  }
  EXPECT_THAT(first_words, SizeIs(5000));
  EXPECT_THAT(rests, SizeIs(5000));
  const std::vector<LoadPrompt> fewer = built_in_prompts(2, 9);
  EXPECT_EQ(fewer[1].text, prompts[1].text);
}

}  // namespace
}  // namespace colossal::serve::load_test_test
