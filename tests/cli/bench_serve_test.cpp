// `colossal bench serve` as a user runs it, against a server in this process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/outcome.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/http/server.h"
#include "support/temporary_folder.h"

namespace colossal::cli::bench_serve_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

/// A server that answers every completion with a stream of three tokens, or with an error.
class ThreeTokenServer {
 public:
  explicit ThreeTokenServer(http::Keys keys = {}, int status = 200)
      : server_({.port = 0, .keys = std::move(keys)},
                {{"POST", "/v1/completions", [this, status](const http::Request& request, http::Exchange exchange) {
                    {
                      const std::lock_guard lock(mutex_);
                      bodies_.push_back(ordered_json::parse(request.body));
                    }
                    if (status != 200) return exchange.answer(http::ErrorAnswer{status, "the queue is <full>"});
                    http::EventStream stream = exchange.begin_events();
                    for (int i = 0; i < 3; ++i) stream.send(R"({"choices": [{"text": "x"}]})");
                    stream.send(R"({"choices": [], "usage": {"completion_tokens": 3}})");
                    stream.send("[DONE]");
                    stream.end();
                  }}}) {}

  Outcome load(std::vector<std::string> words) {
    words.insert(words.begin(), {"serve", "--url", server_.url()});
    return run_command("bench", words);
  }
  std::vector<ordered_json> bodies() {
    const std::lock_guard lock(mutex_);
    return bodies_;
  }

 private:
  std::mutex mutex_;
  std::vector<ordered_json> bodies_;
  http::Server server_;  // the last member, because its handlers use the others
};

TEST(BenchServe, PrintsJson) {
  ThreeTokenServer server;
  const Outcome outcome = server.load({"--clients", "2", "--requests", "5", "--max-tokens", "3", "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const auto result = ordered_json::parse(outcome.out);
  std::vector<std::string> members;
  for (const auto& [name, value] : result.items()) members.push_back(name);
  EXPECT_EQ(members, (std::vector<std::string>{"requests", "failed", "seconds", "tokens", "tokens_per_second",
                                               "requests_per_second", "first_token_seconds", "between_tokens_seconds",
                                               "request_seconds"}));
  EXPECT_EQ(result["requests"], 5);
  EXPECT_EQ(result["failed"], 0);
  EXPECT_EQ(result["tokens"], 15);
  const double seconds = result["seconds"];
  EXPECT_DOUBLE_EQ(result["tokens_per_second"], 15 / seconds);
  EXPECT_DOUBLE_EQ(result["requests_per_second"], 5 / seconds);
  for (const char* key : {"first_token_seconds", "between_tokens_seconds", "request_seconds"}) {
    EXPECT_EQ(result[key].size(), 2U);
    EXPECT_GE(result[key]["p50"].get<double>(), 0);
    EXPECT_GE(result[key]["p95"].get<double>(), result[key]["p50"].get<double>());
  }
  std::set<std::string> prompts;
  for (const ordered_json& body : server.bodies()) {
    prompts.insert(body.at("prompt").get<std::string>());
    EXPECT_EQ(body.at("max_tokens"), 3);
    EXPECT_FALSE(body.contains("ignore_eos"));
    EXPECT_FALSE(body.contains("model")) << "the server lists no models";
  }
  EXPECT_EQ(prompts.size(), 5U);
}

TEST(BenchServe, NamesModels) {
  ThreeTokenServer server;
  EXPECT_EQ(server.load({"--clients", "1", "--requests", "3", "--model", "poet", "--model", "coder"}).status, 0);
  std::vector<std::string> models;
  for (const ordered_json& body : server.bodies()) models.push_back(body.at("model"));
  EXPECT_EQ(models, (std::vector<std::string>{"poet", "coder", "poet"}));
}

TEST(BenchServe, PrintsATableAndWritesTheReport) {
  const test::TemporaryFolder folder;
  ThreeTokenServer server;
  const Outcome outcome = server.load({"--clients", "1", "--requests", "4", "--report", folder / "report.html"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("4 requests, 0 failed, 12 tokens in "));
  for (const char* row : {"first token", "between tokens", "whole request"})
    EXPECT_THAT(outcome.out, ContainsRegex(std::string("\n") + row + " +[0-9.]+ +[0-9.]+\n"));
  const std::string page = read_file(folder / "report.html", 1 << 20);
  for (const char* part :
       {"Load test", "http://127.0.0.1:", ", 1 client<", "Tokens per second", "Seconds to the first token",
        "Seconds between tokens", "Seconds of a request", "4 requests, 0 failed", "class='line first'", "</html>"})
    EXPECT_THAT(page, HasSubstr(part));
  EXPECT_THAT(page, Not(HasSubstr("no finite value")));
}

TEST(BenchServe, FailsIfAllRequestsFail) {
  const test::TemporaryFolder folder;
  ThreeTokenServer server({}, 429);
  const Outcome outcome = server.load({"--requests", "3", "--json", "--report", folder / "report.html"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("3 of 3 requests failed; the first failure: HTTP 429: the queue is <full>"));
  const auto result = ordered_json::parse(outcome.out);
  EXPECT_EQ(result["failed"], 3);
  EXPECT_EQ(result["tokens_per_second"], 0);
  EXPECT_TRUE(result["first_token_seconds"]["p50"].is_null());
  const std::string page = read_file(folder / "report.html", 1 << 20);
  EXPECT_THAT(page, HasSubstr("the queue is &lt;full&gt;"));
  EXPECT_THAT(page, HasSubstr("no finite value to show"));
}

TEST(BenchServe, ReadsPromptsFromFiles) {
  const test::TemporaryFolder folder;
  const std::string lines = folder.write("prompts.txt", "To be\n\nor not\n");
  ThreeTokenServer plain;
  EXPECT_EQ(plain.load({"--requests", "4", "--clients", "1", "--ignore-eos", "--prompts", lines}).status, 0);
  std::vector<std::string> prompts;
  for (const ordered_json& body : plain.bodies()) {
    prompts.push_back(body.at("prompt"));
    EXPECT_EQ(body.at("max_tokens"), 128);
    EXPECT_EQ(body.at("ignore_eos"), true);
  }
  EXPECT_EQ(prompts, (std::vector<std::string>{"To be", "or not", "To be", "or not"}));
  ThreeTokenServer json;
  const std::string objects =
      folder.write("prompts.jsonl", "{\"prompt\": \"a\", \"max_tokens\": 7}\n{\"prompt\": \"b\"}\n");
  EXPECT_EQ(json.load({"--requests", "2", "--clients", "1", "--max-tokens", "9", "--prompts", objects}).status, 0);
  ASSERT_EQ(json.bodies().size(), 2U);
  EXPECT_EQ(json.bodies()[0]["max_tokens"], 7);
  EXPECT_EQ(json.bodies()[1]["max_tokens"], 9);
  const Outcome missing = json.load({"--prompts", folder / "none.txt"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("cannot read the file of prompts"));
}

TEST(BenchServe, TakesTheKeyFromTheEnvironment) {
  ThreeTokenServer server(http::Keys({"the-right-key"}));
  const Outcome refused = server.load({"--requests", "1"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("HTTP 401: "));
  setenv("COLOSSAL_API_KEY", "the-right-key", 1);
  EXPECT_EQ(server.load({"--requests", "1"}).status, 0);
  unsetenv("COLOSSAL_API_KEY");
}

TEST(BenchServe, RefusesInvalidArguments) {
  const auto error_of = [](std::vector<std::string> words, int status) {
    words.insert(words.begin(), "serve");
    const Outcome outcome = run_command("bench", words);
    EXPECT_EQ(outcome.status, status);
    return outcome.err;
  };
  EXPECT_THAT(error_of({}, 2), HasSubstr("--url"));
  EXPECT_THAT(error_of({"--url", "http://x", "--clients", "0"}, 2), HasSubstr("--clients"));
  EXPECT_THAT(error_of({"--url", "x:80"}, 1), HasSubstr("[http] a URL must be http://HOST[:PORT][/PREFIX]: got x:80"));
}

}  // namespace
}  // namespace colossal::cli::bench_serve_test
