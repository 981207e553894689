// Bodies that are mutated at random: the reader returns a request or throws http::RequestError.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "colossal/serve/request_reader.h"

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

/// Parts of JSON that take the place of others.
const std::vector<std::string> kTokens{
    "null",      "true",        "-1",          "0",  "1e308", "1e999", "18446744073709551615",
    "\"\"",      "\"\\u0000\"", "\"\\ud800\"", "[]", "{}",    "[[]]",  "{\"$ref\": \"#\"}",
    "\xff",      "\xe2\x82",    ",",           ":",  "\"",    "\\",    "0.1",
    "[1, \"a\"]"};

std::string mutated(std::string body, std::mt19937& random) {
  const auto below = [&random](size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random); };
  for (size_t times = below(3) + 1; times > 0; --times) {
    const size_t at = below(body.size());
    switch (below(5)) {
      case 0:
        body[at] = static_cast<char>(below(256));
        break;
      case 1:
        body.erase(at, below(8) + 1);
        break;
      case 2:
        body.insert(at, kTokens[below(kTokens.size())]);
        break;
      case 3: {  // the value after a colon
        const size_t colon = body.find(':', at);
        if (colon == std::string::npos) break;
        const size_t end = body.find_first_of(",}]", colon);
        if (end != std::string::npos) body.replace(colon + 1, end - colon - 1, kTokens[below(kTokens.size())]);
        break;
      }
      default:
        body.insert(at, body.substr(below(body.size()), below(40)));
    }
    if (body.empty()) body = "{";
  }
  return body;
}

/// Replaces one value of the body, or its whole object or list, by another.
std::string with_other_value(const std::string& body, std::mt19937& random) {
  using nlohmann::ordered_json;
  static const std::vector<ordered_json> values{nullptr,
                                                true,
                                                -1,
                                                0,
                                                1,
                                                257,
                                                1e300,
                                                "",
                                                "a",
                                                "auto",
                                                "required",
                                                "text",
                                                "object",
                                                ordered_json::array(),
                                                ordered_json::object(),
                                                {{"$ref", "#"}},
                                                {{"type", "text"}},
                                                {1, "a"},
                                                {"a", "b"}};
  const auto below = [&random](size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random); };
  ordered_json json = ordered_json::parse(body);
  const ordered_json flat = json.flatten();
  auto chosen = flat.begin();
  std::advance(chosen, below(flat.size()));
  ordered_json::json_pointer place(chosen.key());
  for (size_t up = below(4); up > 2 && !place.parent_pointer().empty(); --up) place = place.parent_pointer();
  json[place] = values[below(values.size())];
  return json.dump();
}

TEST(RequestMutation, EndsWithARequestOrAnError) {
  const RequestReader reader({.defaults = request_defaults({}, {}), .vocabulary = 257});
  std::mt19937 random(41);
  int requests = 0, errors = 0;
  std::set<std::string> params;
  for (int i = 0; i < 4000; ++i) {
    const std::string& original = kBodies[i % kBodies.size()];
    const std::string body = i % 2 == 0 ? mutated(original, random) : with_other_value(original, random);
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
