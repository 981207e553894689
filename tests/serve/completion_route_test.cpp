// POST /v1/completions over a scripted replica.
#include "serve/test_service.h"

namespace colossal::serve_test::completion_route_test {
namespace {

using infer::FinishReason;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kPath = "/v1/completions";

std::vector<int64_t> ids_of(const std::string& text) { return text::ByteTokenizer().encode(text); }

std::vector<int64_t> seeds_of(const std::vector<serve::Generation>& generations) {
  std::vector<int64_t> seeds;
  for (const serve::Generation& generation : generations) seeds.push_back(generation.options.sampling.seed);
  return seeds;
}

/// Scores the tokens of the prompt with -1, -2, ... and those of the answer with -0.5.
std::vector<infer::Event> scored(const serve::Generation& generation, const std::string& answer) {
  std::vector<infer::Event> events = events_of(answer, FinishReason::AtLength);
  for (infer::Event& event : events)
    if (event.is_answer()) event.log_probabilities = infer::LogProbabilities{-0.5, {{'z', -0.25}}};
  for (size_t i = 1; i < generation.prompt.size(); ++i)
    events[0].prompt_log_probabilities.push_back({-static_cast<double>(i), {{'y', -0.125}}});
  return events;
}

TEST(CompletionRoute, AnswersInOnePiece) {
  TestService test;
  test.replica.play("Hello");
  const Json answer = test.answer(kPath, R"({"prompt": "To be", "max_tokens": 9, "temperature": 0, "seed": 3})");
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["model"], "tiny");
  EXPECT_EQ(answer["choices"][0]["text"], "Hello");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["choices"][0]["logprobs"], nullptr);
  EXPECT_EQ(answer["usage"].dump(), R"({"prompt_tokens":5,"completion_tokens":5,"total_tokens":10,)"
                                    R"("prompt_tokens_details":{"cached_tokens":0}})");
  const serve::Generation added = test.replica.added().at(0);
  EXPECT_EQ(added.prompt, ids_of("To be"));
  EXPECT_EQ(added.options.max_tokens, 9);
  EXPECT_EQ(added.options.sampling.temperature, 0);
  EXPECT_EQ(added.options.sampling.seed, 3);
  EXPECT_FALSE(added.ignores_end);
}

TEST(CompletionRoute, StreamsAnEventForEachCompleteToken) {
  TestService test;
  test.replica.play("a\xc3\xbc!");
  const Stream stream = test.stream(kPath, R"({"prompt": "x", "stream": true})");
  EXPECT_THAT(stream.texts(), ElementsAre("a", "\xc3\xbc", "!", ""));
  EXPECT_TRUE(stream.is_done && stream.is_complete);
  EXPECT_EQ(stream.events.back()["choices"][0]["finish_reason"], "stop");
  EXPECT_FALSE(stream.events[0].contains("usage"));
}

TEST(CompletionRoute, EndsStreamsWithTheUsageIfAsked) {
  TestService test;
  test.replica.play("ab", FinishReason::AtLength);
  const Stream stream =
      test.stream(kPath, R"({"prompt": "xyz", "stream": true, "stream_options": {"include_usage": true}})");
  ASSERT_EQ(stream.events.size(), 3u);
  EXPECT_EQ(stream.events[1]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(stream.events[1]["usage"], nullptr);
  EXPECT_THAT(stream.events[2]["choices"], IsEmpty());
  EXPECT_EQ(stream.events[2]["usage"]["total_tokens"], 5);
  EXPECT_TRUE(stream.is_done);
}

TEST(CompletionRoute, NumbersTheChoicesOfAllPrompts) {
  TestService test;
  test.replica.play([](const serve::Generation& generation) {
    const std::string prompt(generation.prompt.begin(), generation.prompt.end());
    return events_of(concat(prompt, generation.options.sampling.seed));
  });
  const Json answer = test.answer(kPath, R"({"prompt": [[97], [98]], "n": 2, "seed": 7})");
  std::vector<std::string> texts;
  for (const Json& choice : answer["choices"]) {
    EXPECT_EQ(choice["index"], texts.size());
    texts.push_back(choice["text"]);
  }
  EXPECT_THAT(texts, ElementsAre("a7", "a8", "b7", "b8"));
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 2);  // each prompt counts once
  EXPECT_EQ(answer["usage"]["completion_tokens"], 8);
  std::vector<int64_t> after;
  for (const serve::Generation& generation : test.replica.added()) after.push_back(generation.after);
  EXPECT_THAT(after, ElementsAre(-1, 0, -1, 2));
}

TEST(CompletionRoute, DrawsTheSeedsOfRequestsWithoutOne) {
  TestService test;
  test.answer(kPath, R"({"prompt": ["a", "a"], "n": 2})");
  const std::vector<int64_t> seeds = seeds_of(test.replica.added());
  EXPECT_EQ(seeds[1], seeds[0] + 1);
  EXPECT_EQ(seeds[3], seeds[2] + 1);
  EXPECT_NE(seeds[2], seeds[0]);  // equal with a probability of 2^-53
}

TEST(CompletionRoute, StopsAtStopStringsAcrossTokens) {
  for (const bool is_stream : {false, true}) {
    TestService test;
    test.replica.play([](const serve::Generation& generation) {
      return events_of(generation.options.sampling.seed == 0 ? "ab STOP and more" : "whole", FinishReason::AtLength);
    });
    const std::string body = R"({"prompt": "x", "stop": ["STOP"], "n": 2, "seed": 0, "stream": )";
    if (is_stream) {
      const Stream stream = test.stream(kPath, body + R"(true, "stream_options": {"include_usage": true}})");
      EXPECT_THAT(stream.texts(), ElementsAre("a", "b", " ", ""));
      EXPECT_EQ(stream.events.back()["usage"]["completion_tokens"], 7 + 5);
    } else {
      const Json answer = test.answer(kPath, body + "false}");
      EXPECT_EQ(answer["choices"][0]["text"], "ab ");
      EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
      EXPECT_EQ(answer["choices"][1]["text"], "whole");
      EXPECT_EQ(answer["usage"]["completion_tokens"], 7 + 5);
    }
    EXPECT_THAT(test.replica.cancelled(), ElementsAre(1));
    EXPECT_THAT(test.replica.added()[0].options.stop, IsEmpty());
  }
}

TEST(CompletionRoute, ReportsLogProbabilities) {
  TestService test;
  test.replica.play([](const serve::Generation& generation) { return scored(generation, "ab"); });
  const Json answer = test.answer(kPath, R"({"prompt": "xyz", "logprobs": 1})");
  EXPECT_EQ(answer["choices"][0]["logprobs"].dump(),
            R"({"tokens":["a","b"],"token_logprobs":[-0.5,-0.5],)"
            R"("top_logprobs":[{"z":-0.25,"a":-0.5},{"z":-0.25,"b":-0.5}],"text_offset":[0,1]})");
  EXPECT_EQ(test.replica.added()[0].options.logprobs, 1);
  EXPECT_EQ(test.replica.added()[0].options.prompt_logprobs, -1);
}

TEST(CompletionRoute, EchoesPromptsWithTheirLogProbabilities) {
  for (const bool has_ids : {false, true}) {
    TestService test;
    test.replica.play([](const serve::Generation& generation) { return scored(generation, ""); });
    const std::string prompt = has_ids ? "[120, 121, 122]" : "\"xyz\"";
    const Json answer =
        test.answer(kPath, concat(R"({"prompt": )", prompt, R"(, "echo": true, "logprobs": 1, "max_tokens": 0})"));
    const Json& choice = answer["choices"][0];
    EXPECT_EQ(choice["text"], "xyz");
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(choice["logprobs"].dump(), R"({"tokens":["x","y","z"],"token_logprobs":[null,-1.0,-2.0],)"
                                         R"("top_logprobs":[null,{"y":-0.125},{"y":-0.125,"z":-2.0}],)"
                                         R"("text_offset":[0,1,2]})");
    EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
    const infer::GenerationOptions options = test.replica.added()[0].options;
    EXPECT_EQ(options.max_tokens, 0);
    EXPECT_EQ(options.prompt_logprobs, 1);
  }
}

TEST(CompletionRoute, EchoesBytesThatAreNoCharacters) {
  TestService test;
  test.replica.play("ab");
  const Json answer = test.answer(kPath, R"({"prompt": [255, 120], "echo": true})");
  EXPECT_EQ(answer["choices"][0]["text"], "\xef\xbf\xbdxab");
}

TEST(CompletionRoute, EchoesPromptsInStreams) {
  TestService test;
  test.replica.play("ab");
  const Stream stream = test.stream(kPath, R"({"prompt": "xyz", "echo": true, "stream": true})");
  EXPECT_THAT(stream.texts(), ElementsAre("xyza", "b", ""));
}

TEST(CompletionRoute, CountsFoundTokensOncePerPrompt) {
  TestService test;
  test.replica.play([](const serve::Generation& generation) {
    std::vector<infer::Event> events = events_of("ab");
    for (infer::Event& event : events) event.found = generation.after < 0 ? 2 : 3;
    return events;
  });
  const Json answer = test.answer(kPath, R"({"prompt": ["wxyz", "wxyz"], "n": 3})");
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
}

TEST(CompletionRoute, CutsAnswersToTheRoom) {
  TestService test;
  test.answer(kPath, R"({"prompt": "0123456789", "max_tokens": 1000, "ignore_eos": true})");
  test.answer(kPath, R"({"prompt": "0123456789"})");
  const auto added = test.replica.added();
  EXPECT_EQ(added[0].options.max_tokens, 55);  // 64 - 10 + 1, because the last token is not read
  EXPECT_TRUE(added[0].ignores_end);
  EXPECT_EQ(added[1].options.max_tokens, 16);
}

TEST(CompletionRoute, RefusesWorkWhileTheQueueIsFull) {
  TestOptions options;
  options.service.limits.max_waiting = 3;
  TestService test(options);
  test.replica.set_full(true);
  const http::Reply reply = test.post(kPath, R"({"prompt": "x", "n": 2})");
  EXPECT_EQ(reply.status, 429);
  EXPECT_NE(reply.headers.find("Retry-After"), nullptr);
  EXPECT_THAT(reply.body, HasSubstr("3 requests may wait (--max-waiting)"));
  EXPECT_THAT(reply.body, HasSubstr("rate_limit_error"));
  const http::Reply never = test.post(kPath, R"({"prompt": ["x", "y"], "n": 2})");
  EXPECT_EQ(never.status, 400);
  EXPECT_THAT(never.body, HasSubstr("at most 3: got 2 times 2"));
}

TEST(CompletionRoute, AnswersFailuresWithAnError) {
  for (const bool has_schema : {false, true}) {
    TestService test;
    test.replica.play([](const serve::Generation& generation) {
      std::vector<infer::Event> events = events_of("{");
      if (generation.options.sampling.seed == 1) events.insert(events.begin() + 1, failure("too many states"));
      return events;
    });
    test.replica.allow_steps(2);
    const std::string format = has_schema ? R"("response_format": {"type": "json_object"},)" : "";
    const http::Reply reply = test.post(kPath, concat("{", format, R"("prompt": "x", "seed": 0, "n": 2})"));
    EXPECT_EQ(reply.status, has_schema ? 400 : 500);
    EXPECT_THAT(reply.body, HasSubstr("too many states"));
    EXPECT_THAT(test.replica.cancelled(), ElementsAre(1, 2));
    EXPECT_THAT(test.log(1)[0], ::testing::EndsWith(", error"));
  }
}

TEST(CompletionRoute, BlamesTheServerForFailuresOfItsEngine) {
  TestService test;
  test.replica.play([](const serve::Generation&) {
    return std::vector<infer::Event>{failure("rank 1 has died", infer::FinishReason::EngineEnded)};
  });
  const http::Reply reply = test.post(kPath, R"({"prompt": "x", "response_format": {"type": "json_object"}})");
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, HasSubstr("rank 1 has died"));
}

TEST(CompletionRoute, EndsStreamsOfFailuresWithAnErrorEvent) {
  TestService test;
  test.replica.play([](const serve::Generation&) {
    return std::vector<infer::Event>{{.id = -1, .token = 'a'},
                                     failure("rank 1 has ended", infer::FinishReason::EngineEnded)};
  });
  const Stream stream = test.stream(kPath, R"({"prompt": "x", "stream": true})");
  ASSERT_EQ(stream.events.size(), 2u);
  EXPECT_EQ(stream.events[1]["error"]["type"], "server_error");
  EXPECT_THAT(stream.events[1]["error"]["message"], HasSubstr("rank 1 has ended"));
  EXPECT_FALSE(stream.is_done);
  EXPECT_TRUE(stream.is_complete);
}

TEST(CompletionRoute, EndsAnswersWhoseWorkIsDropped) {
  for (const bool is_stream : {false, true}) {
    TestService test;
    test.replica.allow_steps(0);
    http_test::RawConnection client(test.server->port());
    client.send(TestService::request(kPath, concat(R"({"prompt": "x", "stream": )", is_stream ? "true}" : "false}")));
    ASSERT_TRUE(TestService::wait_for([&] { return !test.replica.added().empty(); }));
    if (is_stream) {
      ASSERT_TRUE(client.receive_until("event-stream"));
    }
    test.replica.drop_all();
    if (is_stream) {
      EXPECT_THAT(client.receive_all(), ::testing::Not(HasSubstr("[DONE]")));
    } else {
      EXPECT_THAT(client.receive_answer(), HasSubstr("500 Internal Server Error"));
    }
  }
}

TEST(CompletionRoute, CancelsAllChoicesOfClientsThatLeave) {
  struct Phase {
    bool is_stream;
    int64_t steps;
  };
  for (const Phase phase : {Phase{false, 0}, Phase{true, 0}, Phase{false, 2}, Phase{true, 2}}) {
    TestService test;
    test.replica.allow_steps(phase.steps);
    http_test::RawConnection client(test.server->port());
    client.send(TestService::request(
        kPath, concat(R"({"prompt": ["x", "y"], "n": 2, "stream": )", phase.is_stream ? "true}" : "false}")));
    ASSERT_TRUE(TestService::wait_for([&] { return test.replica.added().size() == 4; }));
    if (phase.is_stream) {
      ASSERT_TRUE(client.receive_until(phase.steps > 0 ? "data: " : "event-stream"));
    }
    phase.steps > 0 ? client.close() : client.end_sending();
    EXPECT_TRUE(TestService::wait_for([&] { return test.replica.cancelled().size() == 4; }));
    EXPECT_THAT(test.log(1)[0], ::testing::EndsWith(", left"));
    EXPECT_THAT(test.log(1)[0], HasSubstr(": 2 prompt tokens"));
  }
}

}  // namespace
}  // namespace colossal::serve_test::completion_route_test
