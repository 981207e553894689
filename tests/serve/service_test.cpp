// The routes that run no completion, and what the service counts and logs.
#include "colossal/serve/service.h"

#include <atomic>

#include "serve/test_service.h"
#include "support/thrown_message.h"

namespace colossal::serve_test::service_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kCompletions = "/v1/completions";

http::Request request_of(int64_t key, const std::string& address) {
  http::Request request;
  request.key = key;
  request.remote_address = address;
  return request;
}

TEST(Service, AnswersWhileTheModelLoads) {
  TestOptions options;
  options.opens = false;
  TestService test(options);
  EXPECT_EQ(test.get("/health").status, 503);
  EXPECT_EQ(test.get("/health").body, R"({"status": "loading"})");
  EXPECT_EQ(test.get("/metrics").status, 200);
  EXPECT_EQ(test.get("/").status, 200);
  for (const char* path : {kCompletions, "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"}) {
    const http::Reply reply = test.post(path, "{}");
    EXPECT_EQ(reply.status, 503) << path;
    EXPECT_THAT(reply.body, HasSubstr("not loaded yet"));
  }
  EXPECT_EQ(test.get("/v1/models").status, 503);
  test.service.open(test.model(), test.replica);
  EXPECT_EQ(test.get("/health").body, R"({"status": "ok"})");
  EXPECT_EQ(test.post(kCompletions, R"({"prompt": "x"})").status, 200);
  EXPECT_THAT(test::thrown_message([&] { test.service.open(test.model(), test.replica); }), HasSubstr("opened once"));
}

TEST(Service, AnswersRunningRequestsWhileItDrains) {
  TestService test;
  test.replica.allow_steps(0);
  http_test::RawConnection client(test.server->port());
  client.send(TestService::request(kCompletions, R"({"prompt": "x"})"));
  ASSERT_TRUE(TestService::wait_for([&] { return !test.replica.added().empty(); }));
  test.service.drain();
  test.server->drain();
  const http::Reply health = test.get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.body, R"({"status": "draining"})");
  EXPECT_EQ(test.post(kCompletions, R"({"prompt": "x"})").status, 503);
  EXPECT_EQ(test.get("/metrics").status, 200);
  test.replica.allow_steps(-1);
  EXPECT_THAT(client.receive_answer(), HasSubstr("200 OK"));
}

TEST(Service, ServesThePageUnderItsPolicy) {
  TestService test;
  const http::Reply reply = test.get("/");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(*reply.headers.find("Content-Type"), "text/html; charset=utf-8");
  EXPECT_NE(reply.headers.find("Content-Security-Policy"), nullptr);
}

TEST(Service, ListsItsRoutesIfItsModelOnlyEmbeds) {
  TestOptions options;
  options.opens = false;
  options.service.only_embeds = true;
  TestService test(options);
  for (const bool is_loaded : {false, true}) {
    if (is_loaded) {
      serve::ServedModel model = test.model();
      model.continues = false;
      test.service.open(model, test.replica);
    }
    const http::Reply reply = test.get("/");
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(*reply.headers.find("Content-Type"), "text/plain; charset=utf-8");
    EXPECT_THAT(reply.body, AllOf(HasSubstr("The model embeds texts"), HasSubstr("\nPOST /v1/embeddings\n"),
                                  HasSubstr("\nGET /health\n"), Not(HasSubstr("completions"))));
  }
  EXPECT_EQ(test.post(kCompletions, R"({"prompt": "x"})").status, 400);
}

TEST(Service, ShowsItsModel) {
  TestService test;
  const Json list = Json::parse(test.get("/v1/models").body);
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["max_model_len"], 64);
  EXPECT_EQ(Json::parse(test.get("/v1/models/any%20name").body)["id"], "tiny");
}

TEST(Service, ConvertsTextsToTokensAndBack) {
  TestService test;
  EXPECT_EQ(test.answer("/tokenize", R"({"prompt": "ab"})").dump(),
            R"({"tokens":[97,98],"count":2,"max_model_len":64})");
  EXPECT_EQ(test.answer("/tokenize", R"({"messages": [{"role": "user", "content": "Hi"}]})")["count"], 18);
  EXPECT_EQ(test.answer("/detokenize", R"({"tokens": [97, 98]})").dump(), R"({"prompt":"ab"})");
}

/// Bytes with a begin token before prompts; whole texts also have an end token.
class MarkingTokenizer final : public text::Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override { return bytes_.encode(text); }
  std::string piece(int64_t id) const override { return bytes_.piece(id); }
  int64_t vocabulary_size() const override { return bytes_.vocabulary_size(); }
  int64_t end_id() const override { return bytes_.end_id(); }
  std::vector<int64_t> encode_prompt(std::string_view text) const override {
    std::vector<int64_t> ids = encode(text);
    ids.insert(ids.begin(), 1);
    return ids;
  }
  text::Encoding encode_whole(std::string_view text) const override {
    text::Encoding whole{.ids = encode_prompt(text)};
    whole.ids.push_back(2);
    return whole;
  }

 private:
  text::ByteTokenizer bytes_;
};

TEST(Service, AddsSpecialTokensAsRequested) {
  for (const bool continues : {true, false}) {
    const MarkingTokenizer marking;
    TestOptions options;
    options.opens = false;
    TestService test(options);
    serve::ServedModel model = test.model();
    model.tokenizer = &marking;
    model.continues = continues;
    test.service.open(model, test.replica);
    const auto tokens = [&](const std::string& body) { return test.answer("/tokenize", body)["tokens"]; };
    const Json with = continues ? Json({1, 97}) : Json({1, 97, 2});
    EXPECT_EQ(tokens(R"({"prompt": "a"})"), with);
    EXPECT_EQ(tokens(R"({"prompt": "a", "add_special_tokens": true})"), with);
    EXPECT_EQ(tokens(R"({"prompt": "a", "add_special_tokens": false})"), Json({97}));
    const std::string chat = R"({"messages": [{"role": "user", "content": "Hi"}])";
    const size_t without = tokens(chat + "}").size();
    EXPECT_EQ(tokens(chat + R"(, "add_special_tokens": false})").size(), without);
    EXPECT_EQ(tokens(chat + R"(, "add_special_tokens": true})").size(), without + (continues ? 1 : 2));
    const http::Reply bad = test.post("/tokenize", R"({"prompt": "a", "add_special_tokens": 1})");
    EXPECT_EQ(bad.status, 400);
    EXPECT_THAT(bad.body, HasSubstr("add_special_tokens must be true or false"));
  }
}

TEST(Service, EmbedsTexts) {
  TestService test;
  test.replica.play_vectors({.rows = {{1, 0.5}, {2, 0}}});
  const Json answer = test.answer("/v1/embeddings", R"({"input": ["ab", "c"]})");
  EXPECT_EQ(answer["data"][0]["embedding"].dump(), "[1.0,0.5]");
  EXPECT_EQ(answer["data"][1]["index"], 1);
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 3);
  EXPECT_THAT(test.replica.embedded(), ElementsAre(ElementsAre(97, 98), ElementsAre(99)));
  test.replica.play_vectors({.rows = {{1}}});
  EXPECT_EQ(test.answer("/v1/embeddings", R"({"input": [97], "encoding_format": "base64"})")["data"][0]["embedding"],
            "AACAPw==");
  EXPECT_THAT(test.log(2)[0], HasSubstr("/v1/embeddings key - status 200: 3 prompt tokens"));
}

TEST(Service, AnswersEmbeddingsThatFail) {
  TestService test;
  test.replica.play_vectors({.error = "[comm] rank 1 has ended"});
  const http::Reply reply = test.post("/v1/embeddings", R"({"input": "x"})");
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, HasSubstr("rank 1 has ended"));
  EXPECT_THAT(test.log(1)[0], EndsWith(", error"));
  test.replica.set_full(true);
  EXPECT_EQ(test.post("/v1/embeddings", R"({"input": "x"})").status, 429);
}

TEST(Service, CancelsEmbeddingsOfClientsThatLeave) {
  TestService test;
  test.replica.allow_steps(0);
  http_test::RawConnection client(test.server->port());
  client.send(TestService::request("/v1/embeddings", R"({"input": "x"})"));
  ASSERT_TRUE(TestService::wait_for([&] { return !test.replica.embedded().empty(); }));
  client.close();
  EXPECT_TRUE(TestService::wait_for([&] { return test.replica.cancelled().contains(1); }));
  EXPECT_THAT(test.log(1)[0], EndsWith(", left"));
}

TEST(Service, BoundsUnfinishedEmbeddings) {
  TestOptions options;
  options.service.limits.max_waiting = 1;
  TestService test(options);
  test.replica.allow_steps(0);  // the replica does not count, as if the first one had begun
  http_test::RawConnection first(test.server->port());
  first.send(TestService::request("/v1/embeddings", R"({"input": "x"})"));
  ASSERT_TRUE(TestService::wait_for([&] { return !test.replica.embedded().empty(); }));
  EXPECT_EQ(test.post("/v1/embeddings", R"({"input": "x"})").status, 429);
  test.replica.play_vectors({.rows = {{1}}});
  test.replica.allow_steps(-1);
  EXPECT_THAT(first.receive_answer(), HasSubstr("200 OK"));
  EXPECT_TRUE(TestService::wait_for([&] { return test.post("/v1/embeddings", R"({"input": "x"})").status == 200; }));
}

TEST(Service, BoundsTokensOfUnfinishedEmbeddings) {
  TestOptions options;
  options.service.max_embedding_tokens = 10;
  TestService test(options);
  test.replica.allow_steps(0);
  http_test::RawConnection first(test.server->port());
  first.send(TestService::request("/v1/embeddings", R"({"input": ["12345678", "12345678"]})"));  // alone, so it fits
  ASSERT_TRUE(TestService::wait_for([&] { return test.replica.embedded().size() == 2; }));
  const http::Reply full = test.post("/v1/embeddings", R"({"input": "x"})");
  EXPECT_EQ(full.status, 429);
  EXPECT_NE(full.headers.find("Retry-After"), nullptr);
  EXPECT_THAT(full.body, HasSubstr("embeddings may have 10 tokens together, the unfinished ones have 16, and this one "
                                   "adds 1; try again later"));
  test.replica.play_vectors({.rows = {{1}, {1}}});
  test.replica.allow_steps(-1);
  EXPECT_THAT(first.receive_answer(), HasSubstr("200 OK"));
  EXPECT_TRUE(TestService::wait_for([&] { return test.post("/v1/embeddings", R"({"input": "x"})").status == 200; }));
}

/// A tokenizer that does not come to an end of texts of more than 64 KiB before it is released.
class SlowTokenizer final : public text::Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    if (text.size() > 64 << 10) {
      ++slow;
      TestService::wait_for([this] { return is_released.load(); });
    }
    return {1};
  }
  std::string piece(int64_t) const override { return "x"; }
  int64_t vocabulary_size() const override { return 257; }
  int64_t end_id() const override { return 256; }

  mutable std::atomic<int> slow{0};
  std::atomic<bool> is_released{false};
};

TEST(Service, AnswersASmallRequestBesideHugeOnes) {
  SlowTokenizer slow;
  TestOptions options;
  options.opens = false;
  TestService test(options);
  serve::ServedModel model = test.model();
  model.tokenizer = &slow;
  test.service.open(model, test.replica);
  const std::string huge = TestService::request("/tokenize", "{\"prompt\": \"" + std::string(1 << 20, 'x') + "\"}");
  std::vector<std::unique_ptr<http_test::RawConnection>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<http_test::RawConnection>(test.server->port()));
    clients.back()->send(huge);
  }
  ASSERT_TRUE(TestService::wait_for([&] { return slow.slow == 1; }));
  EXPECT_EQ(test.answer("/tokenize", R"({"prompt": "x"})")["count"], 1);
  EXPECT_FALSE(slow.is_released);
  EXPECT_EQ(slow.slow, 1) << "one thread is left for small requests";
  slow.is_released = true;
  for (const auto& client : clients) EXPECT_THAT(client->receive_answer(), HasSubstr("200 OK"));
}

TEST(Service, SeparatesClientsByKeyElseByAddress) {
  const serve::Service open({}), closed({.has_keys = true});
  EXPECT_EQ(http::client_of(request_of(0, "::1")), "::1");
  EXPECT_EQ(open.cache_key_of(request_of(0, "::1")), open.cache_key_of(request_of(0, "127.0.0.1")));
  EXPECT_EQ(http::client_of(request_of(1, "::1")), http::client_of(request_of(1, "127.0.0.1")));
  EXPECT_NE(http::client_of(request_of(1, "::1")), http::client_of(request_of(2, "::1")));
  EXPECT_NE(closed.cache_key_of(request_of(1, "::1")), closed.cache_key_of(request_of(2, "::1")));
}

TEST(Service, DemandsKeysOfAllButHealthAndPage) {
  TestOptions options;
  options.keys = {"first-key", "second-key"};
  TestService test(options);
  test.post(kCompletions, R"({"prompt": "x"})");
  test.key = "second-key";
  test.post(kCompletions, R"({"prompt": "x"})");
  const std::vector<serve::Generation> added = test.replica.added();
  EXPECT_EQ(added[0].cache_key, "1");
  EXPECT_EQ(added[1].cache_key, "2");
  EXPECT_NE(added[0].client, added[1].client);
  test.key = "";
  EXPECT_EQ(test.get("/health").status, 200);
  EXPECT_EQ(test.get("/").status, 200);
  for (const char* path : {"/metrics", "/v1/models", "/v1/models/tiny"}) EXPECT_EQ(test.get(path).status, 401) << path;
  for (const char* path : {kCompletions, "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"})
    EXPECT_EQ(test.post(path, "{}").status, 401) << path;
}

TEST(Service, LogsALinePerRequestWithoutTextsAndKeys) {
  TestOptions options;
  options.keys = {"first-key"};
  TestService test(options);
  test.replica.play([](const serve::Generation&) {
    std::vector<infer::Event> events = events_of("SECRET");
    for (infer::Event& event : events) event.found = 2;
    return events;
  });
  test.post(kCompletions, R"({"prompt": "HIDDEN"})");
  test.post(kCompletions, R"({"prompt": "HIDDEN", "temperature": "HIDDEN"})");
  test.key = "wrong-key";
  test.get("/v1/models");
  const std::vector<std::string> lines = test.log(3);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr("/v1/completions key 1 status 200: 6 prompt tokens (2 found), 6 answer tokens, "
                                  "first after "));
  EXPECT_THAT(lines[0], EndsWith(" s, stop"));
  EXPECT_THAT(lines[1], HasSubstr("key 1 status 400: 0 prompt tokens"));
  EXPECT_THAT(lines[2], HasSubstr(" - key - status 401"));
  for (const std::string& line : lines)
    EXPECT_THAT(line, AllOf(Not(HasSubstr("SECRET")), Not(HasSubstr("HIDDEN")), Not(HasSubstr("-key"))));
}

TEST(Service, LeavesProbesOutOfTheLog) {
  TestService test;
  test.get("/health");
  test.get("/v1/models");
  const std::vector<std::string> lines = test.log(1);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr(" /v1/models "));
  EXPECT_THAT(test.get("/metrics").body, HasSubstr("colossal_requests_total{route=\"/health\",status=\"200\"} 1\n"));
}

TEST(Service, CountsWhatItAnswers) {
  TestService test;
  test.replica.set_load({.waiting = 3, .running = 4, .blocks = 10, .blocks_used = 5});
  test.replica.play("abc");
  test.post(kCompletions, R"({"prompt": "xy", "n": 2})");
  test.post(kCompletions, R"({"prompt": 5})");
  test.get("/nowhere");
  test.log(3);
  const http::Reply reply = test.get("/metrics");
  EXPECT_EQ(*reply.headers.find("Content-Type"), serve::kPrometheusType);
  for (const char* line :
       {"colossal_requests_waiting 3\n", "colossal_requests_running 4\n", "colossal_cache_blocks 10\n",
        "colossal_cache_blocks_used 5\n", "colossal_prompt_tokens_total 2\n", "colossal_generated_tokens_total 6\n",
        "colossal_first_token_seconds_count 1\n", "colossal_between_tokens_seconds_count 4\n",
        "colossal_request_seconds_count 1\n", "colossal_requests_total{route=\"/v1/completions\",status=\"200\"} 1\n",
        "colossal_requests_total{route=\"/v1/completions\",status=\"400\"} 1\n",
        "colossal_requests_total{route=\"-\",status=\"404\"} 1\n"})
    EXPECT_THAT(reply.body, HasSubstr(line));
}

TEST(Service, KeepsNoRecordOfClientsThatHaveLeft) {
  serve::Service service({});
  std::atomic<bool> has_begun{false}, has_ended{false}, is_changed{false};
  const auto handler = [&](const http::Request& request, const http::Exchange& exchange) {
    has_begun = true;
    TestService::wait_for([&] { return exchange.is_gone(); });
    service.begin_record(request, exchange);
    service.note(request.number, [&](serve::RequestRecord&) { is_changed = true; });
    has_ended = true;
  };
  http::Server server({.port = 0}, {{"POST", "/slow", handler}});
  http_test::RawConnection client(server.port());
  client.send(TestService::request("/slow", "{}"));
  ASSERT_TRUE(TestService::wait_for([&] { return has_begun.load(); }));
  client.close();
  EXPECT_TRUE(TestService::wait_for([&] { return has_ended.load(); }));
  EXPECT_FALSE(is_changed);
}

TEST(Service, ForgetsRecordsOfRequestsThatHaveEnded) {
  std::vector<std::string> lines;
  serve::Service service({.log = [&](const std::string& line) { lines.push_back(line); }});
  bool is_changed = false;
  service.note(7, [&](serve::RequestRecord&) { is_changed = true; });
  EXPECT_FALSE(is_changed);
  service.log_end({.number = 7, .id = "a", .route = "/v1/models", .status = 200, .is_complete = true});
  service.log_end({.number = 8, .id = "b"});
  EXPECT_THAT(lines, ElementsAre(EndsWith(", -"), EndsWith(", left")));
}

}  // namespace
}  // namespace colossal::serve_test::service_test
