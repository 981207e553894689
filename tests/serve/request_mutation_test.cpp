// Bodies that are mutated at random: the reader returns a request or throws http::RequestError.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "colossal/serve/request_reader.h"
#include "serve/mutations.h"

namespace colossal::serve::request_mutation_test {
namespace {

const std::vector<std::string> kBodies{
    R"({"model": "m", "prompt": ["To be", "or"], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "min_p": 0.1,
        "top_k": 7, "seed": 3, "stop": ["\n", "x"], "logit_bias": {"65": -100}, "presence_penalty": 1, "n": 2,
        "logprobs": 4, "echo": true, "stream_options": {"include_usage": true}, "repetition_penalty": 1.5})",
    R"({"prompt": [[1, 2], [3]], "response_format": {"type": "json_schema", "json_schema": {"schema":
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 2]}}, "required": ["a"]}}}})",
    R"({"messages": [{"role": "developer", "content": "Be brief"}, {"role": "user", "content":
        [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": null, "tool_calls": [{"id": "1",
        "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}], "tools": [{"type": "function", "function":
        {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}}, "logprobs": true, "top_logprobs": 2,
        "max_completion_tokens": 10, "chat_template_kwargs": {"enable_thinking": false}})",
    R"({"input": ["a", "b"], "encoding_format": "base64"})",
    R"({"tokens": [1, 2, 256]})",
};

TEST(RequestMutation, EndsWithARequestOrAnError) {
  const RequestReader reader({.defaults = request_defaults({}, {}), .vocabulary = 257});
  std::mt19937 random(41);
  int requests = 0, errors = 0;
  std::set<std::string> params;
  for (int i = 0; i < 4000; ++i) {
    const std::string& original = kBodies[i % kBodies.size()];
    const std::string body =
        i % 2 == 0 ? serve_test::with_other_bytes(original, random) : serve_test::with_other_value(original, random);
    for (int route = 0; route < 5; ++route) {
      try {
        if (route == 0) reader.completion(body);
        if (route == 1) reader.chat(body);
        if (route == 2) reader.embedding(body);
        if (route == 3) reader.tokenize(body);
        if (route == 4) reader.detokenize(body);
        ++requests;
      } catch (const http::RequestError& error) {
        ++errors;
        params.insert(error.answer().param);
        EXPECT_TRUE(error.answer().status == 400 || error.answer().status == 404) << body;
        EXPECT_FALSE(error.answer().message.empty()) << body;
        EXPECT_NO_THROW(http::error_json(error.answer())) << body;
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what() << "\n" << body;
      }
    }
  }
  EXPECT_GT(requests, 500);  // the mutations leave bodies that are read to their end
  EXPECT_GT(errors, 500);
  EXPECT_GT(params.size(), 30u);
}

}  // namespace
}  // namespace colossal::serve::request_mutation_test
