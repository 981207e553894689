#include "colossal/serve/answers.h"

#include <gtest/gtest.h>

#include <limits>

#include "colossal/base/json.h"

namespace colossal::serve::answers_test {
namespace {

using nlohmann::ordered_json;

ordered_json parsed(const std::string& text) { return ordered_json::parse(text); }

const AnswerHead kHead{.id = "7", .created = 100, .model = "tiny"};
const AnswerHead kScored{.id = "7", .created = 100, .model = "tiny", .with_logprobs = true};
const AnswerHead kCounted{.id = "7", .created = 100, .model = "tiny", .with_usage = true};
const Usage kUsage{.prompt_tokens = 5, .completion_tokens = 2, .cached_tokens = 4};

std::vector<ReportedToken> tokens() {
  return {{.bytes = "a", .offset = 0},
          {.bytes = "\xe2\x80", .logprob = -1.5, .best = {{"b", -0.5}, {"\xe2\x80", -1.5}}, .offset = 1},
          {.bytes = "c", .logprob = -std::numeric_limits<double>::infinity(), .best = {{"b", -0.25}}, .offset = 1}};
}

TEST(Answers, WriteACompletion) {
  EXPECT_EQ(
      parsed(completion_json(
          kHead, {{.text = "To be", .finish_reason = "stop"}, {.text = "x\xff", .finish_reason = "length"}}, kUsage)),
      parsed(R"({"id": "cmpl-7", "object": "text_completion", "created": 100, "model": "tiny", "choices": [
                {"index": 0, "text": "To be", "logprobs": null, "finish_reason": "stop"},
                {"index": 1, "text": "x\ufffd", "logprobs": null, "finish_reason": "length"}],
              "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
                        "prompt_tokens_details": {"cached_tokens": 4}}})"));
}

TEST(Answers, WriteLogprobsOfACompletion) {
  const auto json = parsed(completion_event(kScored, 0, {.text = "a", .tokens = tokens()}));
  EXPECT_EQ(json["choices"][0]["logprobs"], parsed(R"({
      "tokens": ["a", "bytes:\\xe2\\x80", "c"], "token_logprobs": [null, -1.5, -9999.0],
      "top_logprobs": [null, {"b": -0.5, "bytes:\\xe2\\x80": -1.5}, {"b": -0.25, "c": -9999.0}],
      "text_offset": [0, 1, 1]})"));
  EXPECT_EQ(json["choices"][0]["finish_reason"], nullptr);
}

TEST(Answers, WriteAChat) {
  EXPECT_EQ(parsed(chat_json(kHead, {{.text = "Hi", .finish_reason = "stop"}}, kUsage)),
            parsed(R"({"id": "chatcmpl-7", "object": "chat.completion", "created": 100, "model": "tiny", "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": null}, "logprobs": null,
                 "finish_reason": "stop"}],
              "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7,
                        "prompt_tokens_details": {"cached_tokens": 4}}})"));
}

TEST(Answers, WriteCallsOfAChat) {
  const ChoicePart part{.calls = {{"f", "{\"a\":1}"}, {"g", "{}"}}, .finish_reason = "tool_calls"};
  const auto message = parsed(chat_json(kHead, {{.text = ""}, part}, kUsage))["choices"][1]["message"];
  EXPECT_EQ(message, parsed(R"({"role": "assistant", "content": null, "refusal": null, "tool_calls": [
      {"id": "call_7_1_0", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}},
      {"id": "call_7_1_1", "type": "function", "function": {"name": "g", "arguments": "{}"}}]})"));
}

TEST(Answers, WriteLogprobsOfAChat) {
  const ChoicePart part{.text = "é", .tokens = {{.bytes = "\xc3\xa9", .logprob = -1, .best = {{"e", -0.5}}}}};
  EXPECT_EQ(parsed(chat_json(kScored, {part}, kUsage))["choices"][0]["logprobs"], parsed(R"({"content": [
      {"token": "é", "logprob": -1.0, "bytes": [195, 169], "top_logprobs": [
        {"token": "e", "logprob": -0.5, "bytes": [101]}]}], "refusal": null})"));
}

TEST(Answers, WriteEventsOfAChat) {
  EXPECT_EQ(parsed(chat_role_event(kHead, 1)),
            parsed(R"({"id": "chatcmpl-7", "object": "chat.completion.chunk", "created": 100, "model": "tiny",
              "choices": [{"index": 1, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                           "finish_reason": null}]})"));
  EXPECT_EQ(parsed(chat_event(kHead, 1, {.text = "Hi"}))["choices"][0],
            parsed(R"({"index": 1, "delta": {"content": "Hi"}, "logprobs": null, "finish_reason": null})"));
  EXPECT_EQ(parsed(chat_event(kHead, 0, {.finish_reason = "stop"}))["choices"][0],
            parsed(R"({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop"})"));
  EXPECT_EQ(parsed(chat_event(kHead, 0, {.calls = {{"f", "{}"}}}, 2))["choices"][0]["delta"],
            parsed(R"({"tool_calls": [{"index": 2, "id": "call_7_0_2", "type": "function",
                                       "function": {"name": "f", "arguments": "{}"}}]})"));
}

TEST(Answers, WriteUsageOfAStreamOnlyIfAskedFor) {
  EXPECT_FALSE(parsed(completion_event(kHead, 0, {.text = "a"})).contains("usage"));
  EXPECT_EQ(parsed(completion_event(kCounted, 0, {.text = "a"}))["usage"], nullptr);
  const auto last = parsed(completion_usage_event(kCounted, kUsage));
  EXPECT_EQ(last["choices"], ordered_json::array());
  EXPECT_EQ(last["usage"]["total_tokens"], 7);
  EXPECT_EQ(last["object"], "text_completion");
  EXPECT_EQ(parsed(chat_usage_event(kCounted, kUsage))["object"], "chat.completion.chunk");
}

TEST(Answers, WriteModels) {
  const auto model = parsed(R"({"id": "tiny", "object": "model", "created": 100, "owned_by": "colossal",
                                "max_model_len": 512})");
  auto adapter = model;
  adapter["id"] = "poet", adapter["parent"] = "tiny";
  const ShownModel shown{.name = "tiny", .created = 100, .max_model_len = 512};
  EXPECT_EQ(parsed(model_json(shown)), model);
  EXPECT_EQ(parsed(models_json({shown, {.name = "poet", .parent = "tiny", .created = 100, .max_model_len = 512}})),
            ordered_json({{"object", "list"}, {"data", ordered_json::array({model, adapter})}}));
}

TEST(Answers, WriteEmbeddings) {
  EXPECT_EQ(parsed(embeddings_json("tiny", {{0.1f, -2.0f}}, false, 3)),
            parsed(R"({"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -2.0]}],
                       "model": "tiny", "usage": {"prompt_tokens": 3, "total_tokens": 3}})"));
}

TEST(Answers, WriteEmbeddingsInBase64) {
  const auto encoded = [](const std::vector<float>& vector) {
    return parsed(embeddings_json("tiny", {vector}, true, 3))["data"][0]["embedding"].get<std::string>();
  };
  // python: base64.b64encode(struct.pack("<3f", 1, -2.5, 0.1))
  EXPECT_EQ(encoded({1, -2.5f, 0.1f}), "AACAPwAAIMDNzMw9");
  EXPECT_EQ(encoded({1}), "AACAPw==");
  EXPECT_EQ(encoded({1, -2.5f}), "AACAPwAAIMA=");
  EXPECT_EQ(encoded({}), "");
}

TEST(Answers, WriteTokens) {
  EXPECT_EQ(parsed(tokenize_json({1, 2}, 512)), parsed(R"({"tokens": [1, 2], "count": 2, "max_model_len": 512})"));
  EXPECT_EQ(parsed(detokenize_json("a\xff")), parsed(R"({"prompt": "a\ufffd"})"));
}

}  // namespace
}  // namespace colossal::serve::answers_test
