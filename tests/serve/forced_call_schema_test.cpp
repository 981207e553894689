// The schema of an answer that must be a call of a function.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "colossal/serve/tool_calls.h"
#include "colossal/text/grammar/json_schema.h"
#include "colossal/text/grammar/token_mask.h"
#include "colossal/text/tokenizers/byte.h"

namespace colossal::serve::forced_call_schema_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;

TEST(ForcedCallSchema, DescribesCallsOfAllToolsOrOfTheNamedOne) {
  const auto tools = ordered_json::parse(R"([
    {"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    {"function": {"name": "g"}}])");
  EXPECT_EQ(ordered_json::parse(forced_call_schema(tools, {ToolChoice::kNamed, "f"})), ordered_json::parse(R"(
    {"type": "object", "properties": {"name": {"const": "f"},
                                      "arguments": {"type": "object", "properties": {"a": {"type": "integer"}}}},
     "required": ["name", "arguments"], "additionalProperties": false})"));
  const auto required = ordered_json::parse(forced_call_schema(tools, {ToolChoice::kRequired}));
  EXPECT_EQ(required["anyOf"].size(), 2u);
  EXPECT_EQ(required["anyOf"][1]["properties"]["arguments"]["additionalProperties"], false);
  EXPECT_NO_THROW(text::json_grammar(required.dump()));
}

/// Returns masks of the bytes of a forced call of a function `f` with these parameters.
std::shared_ptr<text::TokenMasks> masks_of_call(const char* parameters) {
  const ordered_json tools = {{{"function", {{"name", "f"}, {"parameters", ordered_json::parse(parameters)}}}}};
  const auto [grammar, rule] = text::json_grammar(forced_call_schema(tools, {ToolChoice::kRequired}));
  const text::ByteTokenizer tokenizer;
  return std::make_shared<text::TokenMasks>(
      text::token_grammar(grammar, rule, std::make_shared<text::TokenTrie>(tokenizer)),
      std::vector<int64_t>{text::ByteTokenizer::kEnd});
}

/// Returns true if the masks allow the whole text.
bool allows(const std::shared_ptr<text::TokenMasks>& masks, std::string_view text) {
  text::TokenWalk walk(masks);
  std::vector<int64_t> ids(text.begin(), text.end());
  ids.push_back(text::ByteTokenizer::kEnd);
  for (const int64_t id : ids) {
    if (!(walk.allowed()[id / 64] >> (id % 64) & 1)) return false;
    walk.accept(id);
  }
  return true;
}

TEST(ForcedCallSchema, BoundsWhiteSpace) {
  const auto compact = masks_of_call("{}");
  EXPECT_TRUE(allows(compact, R"({"name": "f", "arguments": {"a":1}})"));
  EXPECT_FALSE(allows(compact, "{\n  \"name\": \"f\", \"arguments\": {}}"));
  const auto indented = masks_of_call(R"({"x-white-space": "indented"})");
  EXPECT_TRUE(allows(indented, "{\n  \"name\": \"f\", \"arguments\": {}}"));
}

TEST(ForcedCallSchema, KeepsReferencesOfParameters) {
  const auto tools = ordered_json::parse(R"([
    {"function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}},
                                              "$defs": {"n": {"type": "integer"}}}}},
    {"function": {"name": "g", "parameters": {"properties": {"a": {"$ref": "#/$defs/n"}},
                                              "$defs": {"n": {"type": "boolean"}}}}}])");
  EXPECT_NO_THROW(text::json_grammar(forced_call_schema(tools, {ToolChoice::kRequired})));
  EXPECT_NO_THROW(text::json_grammar(forced_call_schema(tools, {ToolChoice::kNamed, "g"})));
}

/// Returns a text that follows the schema, with random choices.
std::string random_text(const std::shared_ptr<text::TokenMasks>& masks, std::mt19937& random) {
  text::TokenWalk walk(masks);
  std::string text;
  while (true) {
    std::vector<int64_t> ids;
    const std::vector<uint64_t>& allowed = walk.allowed();
    for (int64_t id = 0; id < walk.vocabulary_size(); ++id)
      if (allowed[id / 64] >> (id % 64) & 1) ids.push_back(id);
    const int64_t id = ids[std::uniform_int_distribution<size_t>(0, ids.size() - 1)(random)];
    if (id == text::ByteTokenizer::kEnd) return text;
    text += static_cast<char>(id);
    walk.accept(id);
  }
}

TEST(ForcedCallSchema, KeepsParametersThatContainThemselves) {
  for (const char* parameters :
       {R"({"type": "object", "properties": {"n": {"$ref": "#"}}, "additionalProperties": false})",
        R"({"$ref": "#/$defs/N", "$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}},
                                                "additionalProperties": false}}})"}) {
    const auto masks = masks_of_call(parameters);
    EXPECT_TRUE(allows(masks, R"({"name": "f", "arguments": {"n": {"n": {}}}})")) << parameters;
    EXPECT_FALSE(allows(masks, R"({"name": "f", "arguments": {"n": {"name": "f", "arguments": {}}}})")) << parameters;
  }
}

TEST(ForcedCallSchema, AllowsNothingButOneCall) {
  const auto tools = ordered_json::parse(R"([
    {"function": {"name": "f", "parameters": {"type": "object", "required": ["a"], "properties": {
      "a": {"type": "integer"}, "b": {"enum": ["<tool_call>", true]}}}}},
    {"function": {"name": "g"}}])");
  const auto [grammar, rule] = text::json_grammar(forced_call_schema(tools, {ToolChoice::kRequired}));
  const text::ByteTokenizer tokenizer;
  const auto masks = std::make_shared<text::TokenMasks>(
      text::token_grammar(grammar, rule, std::make_shared<text::TokenTrie>(tokenizer)),
      std::vector<int64_t>{text::ByteTokenizer::kEnd});
  std::mt19937 random(7);
  std::set<std::string> names;
  for (int i = 0; i < 100; ++i) {
    const std::string text = random_text(masks, random);
    ToolCallReader reader({.functions = {"f", "g"}, .is_forced = true});
    const CallsAndContent read = reader.push(text), rest = reader.finish();
    ASSERT_EQ(read.calls.size(), 1u) << text;
    EXPECT_TRUE(rest.calls.empty()) << text;
    EXPECT_EQ(read.content + rest.content, "") << text;
    names.insert(read.calls[0].name);
  }
  EXPECT_THAT(names, ElementsAre("f", "g"));
}

}  // namespace
}  // namespace colossal::serve::forced_call_schema_test
