// Requests with random faults, through the whole server over a tiny model: each gets 2xx or 4xx, or its connection is
// closed. COLOSSAL_MUTATED_REQUESTS is the number of requests; default: 2,000.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <thread>

#include "colossal/base/error.h"
#include "http/raw_connection.h"
#include "serve/model_server.h"
#include "serve/mutations.h"
#include "serve/test_service.h"
#include "support/generated_text.h"

namespace colossal::serve_test::mutated_server_test {
namespace {

using http_test::RawConnection;

struct Valid {
  std::string method, path, body;
};

/// At least one request for each route. Prompts fit 32 positions.
const std::vector<Valid> kValid{
    {"POST", "/v1/completions",
     R"({"model": "m", "prompt": ["To be", "or"], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1,
         "top_k": 7, "seed": 3, "stop": ["\n", "x"], "logit_bias": {"65": -100}, "presence_penalty": 1, "n": 2,
         "logprobs": 4, "echo": true, "repetition_penalty": 1.5})"},
    {"POST", "/v1/completions",
     R"({"prompt": [[1, 2], [3]], "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 4})"},
    {"POST", "/v1/completions",
     R"({"prompt": "a", "max_tokens": 8, "response_format": {"type": "json_schema", "json_schema": {"schema":
         {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 2]}}, "required": ["a"]}}}})"},
    {"POST", "/v1/chat/completions",
     R"({"messages": [{"role": "developer", "content": "Be"}, {"role": "user", "content": [{"type": "text", "text":
         "Hi"}]}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f",
         "arguments": "{\"a\": 1}"}}]}], "tools": [{"type": "function", "function": {"name": "f", "parameters":
         {"type": "object", "properties": {"a": {"type": "integer"}}}}}], "tool_choice": {"type": "function",
         "function": {"name": "f"}}, "logprobs": true, "top_logprobs": 2, "max_completion_tokens": 10})"},
    {"POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}], "stream": true,
         "response_format": {"type": "json_object"}, "max_tokens": 6, "n": 2})"},
    {"POST", "/v1/embeddings", R"({"input": ["a", "b"], "encoding_format": "base64"})"},
    {"POST", "/v1/embeddings", R"({"input": [[1, 2], [256]]})"},
    {"POST", "/tokenize", R"({"prompt": "To be"})"},
    {"POST", "/tokenize", R"({"messages": [{"role": "user", "content": "Hi"}]})"},
    {"POST", "/detokenize", R"({"tokens": [1, 2, 256]})"},
    {"GET", "/v1/models", ""},
    {"GET", "/v1/models/tiny", ""},
    {"GET", "/health", ""},
    {"GET", "/metrics", ""},
    {"GET", "/", ""},
};

std::string bytes_of(const Valid& valid, const std::string& body, const std::string& headers = "") {
  std::string bytes = concat(valid.method, " ", valid.path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
  if (valid.method == "POST")
    bytes += concat("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  return concat(bytes, headers, "\r\n", body);
}

std::string with_other_headers(const Valid& valid, std::mt19937& random) {
  static const std::vector<std::string> lines{"Host: evil",
                                              "Host:",
                                              "Content-Type: text/plain",
                                              "Content-Type: application/json; charset=latin1",
                                              "Content-Length: 3",
                                              "Content-Length: -1",
                                              "Content-Length: 99999999999999999999",
                                              "Transfer-Encoding: chunked",
                                              "Transfer-Encoding: gzip, chunked",
                                              "Expect: 100-continue",
                                              "Authorization: Bearer " + std::string(5000, 'x'),
                                              "Authorization: \xff",
                                              "X-Request-Id: \"\x01{}",
                                              "Accept: text/event-stream",
                                              "Accept-Encoding: gzip",
                                              "Connection: upgrade",
                                              "Upgrade: websocket",
                                              "Origin: http://evil",
                                              "Cookie: " + std::string(20000, 'x')};
  std::string headers;
  for (size_t count = below(random, 3) + 1; count > 0; --count) headers += lines[below(random, lines.size())] + "\r\n";
  std::string bytes = bytes_of(valid, valid.body, headers);
  const std::array<const char*, 6> methods{"GET", "POST", "HEAD", "OPTIONS", "DELETE", "get"};
  if (below(random, 3) == 0) bytes.replace(0, bytes.find(' '), methods[below(random, methods.size())]);
  return bytes;
}

std::string with_other_schema(const Valid& valid, std::mt19937& random) {
  Json body = Json::parse(valid.body);
  const Json schema = random_schema(random, 4);
  if (valid.path != "/v1/chat/completions" || below(random, 2) == 0)
    body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "a"}, {"schema", schema}}}};
  else
    body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}, {"parameters", schema}}}}};
  body["max_tokens"] = 1 + below(random, 8);
  return bytes_of(valid, body.dump());
}

/// Returns the bytes of a request with faults in its bytes, its headers, its JSON, its schema or its options.
std::string mutated_request(std::mt19937& random) {
  constexpr size_t kGenerations = 5;  // the first of the valid requests
  const Valid &valid = kValid[below(random, kValid.size())], &generation = kValid[below(random, kGenerations)];
  switch (below(random, 8)) {
    case 0:
      return with_other_bytes(bytes_of(valid, valid.body), random);
    case 1:
      return with_other_headers(valid, random);
    case 2:
    case 3:
      return with_other_schema(generation, random);
    case 4:
    case 5:
      return bytes_of(generation, with_other_options(Json::parse(generation.body), random).dump());
    case 6:
      if (!valid.body.empty()) return bytes_of(valid, with_other_bytes(valid.body, random));
      return bytes_of({valid.method, with_other_bytes(valid.path, random), ""}, "");
    default:
      return bytes_of(valid, valid.body.empty() ? "" : with_other_value(valid.body, random));
  }
}

/// Numbers of answers by the first digit of their status; 0 = the connection was closed without one.
using Answers = std::array<int, 10>;

/// Sends requests one after another, each on a connection of its own.
Answers send_mutated(int64_t port, int count, unsigned seed) {
  std::mt19937 random(seed);
  Answers answers{};
  for (int i = 0; i < count && !testing::Test::HasFailure(); ++i) {
    const std::string bytes = mutated_request(random);
    RawConnection client(port);
    const size_t cut = below(random, 4) == 0 ? below(random, bytes.size()) : bytes.size();
    client.send(bytes.substr(0, cut));
    client.send(bytes.substr(cut));
    if (below(random, 16) == 0) continue;  // leaves at once
    std::string received = client.receive_all();
    while (received.starts_with("HTTP/1.1 100 ")) received.erase(0, received.find("\r\n\r\n") + 4);
    const bool has_status = received.starts_with("HTTP/1.1 ") && received.size() > 12;
    EXPECT_TRUE(has_status || received.empty()) << bytes << "\n" << received;
    const int digit = has_status ? received[9] - '0' : 0;
    ++answers[static_cast<size_t>(digit)];
    EXPECT_TRUE(digit == 0 || digit == 2 || digit == 4) << bytes << "\n" << received;
    EXPECT_EQ(received.find("\"server_error\""), std::string::npos) << bytes << "\n" << received;
  }
  return answers;
}

TEST(MutatedServer, AnswersOrRefusesEachRequest) {
  test::TemporaryFolder folder;
  test::write_model(folder, "llama-tiny");
  ModelServerOptions options;
  options.limits.header_timeout = options.limits.body_timeout = options.limits.idle_timeout = 0.05;
  ModelServer server(folder / "hf", options);
  for (const Valid& own : kValid) {
    RawConnection client(server.server.port());
    client.send(bytes_of(own, own.body));
    EXPECT_THAT(client.receive_all(), testing::StartsWith("HTTP/1.1 200 ")) << own.path << own.body;
  }
  const std::string valid = R"({"prompt": "To be", "max_tokens": 9, "temperature": 0})";
  const auto text = [&] {
    const http::Reply reply = server.client().post("/v1/completions", valid);
    return Json::parse(reply.body, nullptr, false)["choices"][0]["text"];
  };
  const Json want = text();
  const char* wanted = std::getenv("COLOSSAL_MUTATED_REQUESTS");
  constexpr int kThreads = 8;
  const int count = (wanted ? std::atoi(wanted) : 2000) / kThreads;
  std::array<Answers, kThreads> answers{};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      try {
        answers[t] = send_mutated(server.server.port(), count, 41 + t);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  Answers all{};
  for (const Answers& own : answers)
    for (size_t digit = 0; digit < all.size(); ++digit) all[digit] += own[digit];
  EXPECT_GT(all[2], count * kThreads / 8) << "few requests ran, so little was tested";
  EXPECT_GT(all[4], count * kThreads / 8);
  EXPECT_TRUE(TestService::wait_for([&] { return server.is_idle() && server.server.connections() == 0; }));
  EXPECT_EQ(text(), want) << "the server works as before";
}

}  // namespace
}  // namespace colossal::serve_test::mutated_server_test
