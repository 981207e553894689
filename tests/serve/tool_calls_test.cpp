#include "colossal/serve/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "colossal/base/error.h"
#include "colossal/text/grammar/json_schema.h"
#include "colossal/text/grammar/token_mask.h"
#include "colossal/text/tokenizers/byte.h"

namespace colossal::serve::tool_calls_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Reads an answer in pieces of `bytes` bytes.
CallsAndContent read_in_pieces(const std::string& text, size_t bytes, ToolCallOptions options = {{"f", "g"}}) {
  ToolCallReader reader(std::move(options));
  CallsAndContent all;
  const auto add = [&all](CallsAndContent read) {
    all.content += read.content;
    for (ToolCall& call : read.calls) all.calls.push_back(std::move(call));
  };
  for (size_t at = 0; at < text.size(); at += bytes) add(reader.push(std::string_view(text).substr(at, bytes)));
  add(reader.finish());
  EXPECT_EQ(reader.calls(), static_cast<int64_t>(all.calls.size()));
  return all;
}

struct WrittenAnswer {
  std::string text, content;
  std::vector<ToolCall> calls;
};

const std::vector<WrittenAnswer> kAnswers{
    // Hermes and Qwen
    {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "", {{"f", "{\"a\":1}"}}},
    {"I look.\n<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\", "
     "\"arguments\": {\"b\": \"}</tool_call>\\\"\"}}</tool_call>\n",
     "I look.",
     {{"f", "{}"}, {"g", "{\"b\":\"}</tool_call>\\\"\"}"}}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> Done. ", "Done. ", {{"f", "{}"}}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", {{"f", "{}"}}},  // ended before the closing
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool", "", {{"f", "{}"}}},
    // Mistral
    {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}, {\"name\": \"g\", \"arguments\": {}}]",
     "",
     {{"f", "{\"a\":[1,2]}"}, {"g", "{}"}}},
    {"So [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]", "So", {{"f", "{}"}}},
    // Llama 3
    {"{\"name\": \"f\", \"parameters\": {\"a\": {\"b\": 2}}}", "", {{"f", "{\"a\":{\"b\":2}}"}}},
    {"\n{ \"name\" : \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"parameters\": {}}",
     "",
     {{"f", "{}"}, {"g", "{}"}}},
    // no calls
    {"", "", {}},
    {" Hello \n", " Hello \n", {}},
    {"a < b <tool_ call>", "a < b <tool_ call>", {}},
    {"See {\"name\": \"f\", \"parameters\": {}}", "See {\"name\": \"f\", \"parameters\": {}}", {}},
    {"{\"name\": \"f\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}}", {}},
    {"{\"name\": \"other\", \"parameters\": {}} ", "{\"name\": \"other\", \"parameters\": {}} ", {}},
    {"{\"a\": 1}", "{\"a\": 1}", {}},
    {"<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>", {}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}} x", "<tool_call>{\"name\": \"f\", \"arguments\": {}} x", {}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a", {}},
    {"<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", {}},
    {"[TOOL_CALLS]f[ARGS]{}", "[TOOL_CALLS]f[ARGS]{}", {}},
    {"[TOOL_CALLS][]", "[TOOL_CALLS][]", {}},
    {"<tool_call>{]}</tool_call>", "<tool_call>{]}</tool_call>", {}},
};

TEST(ToolCalls, ReadPiecesOfAnySize) {
  for (const WrittenAnswer& answer : kAnswers)
    for (const size_t bytes : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1000}}) {
      const CallsAndContent read = read_in_pieces(answer.text, bytes);
      EXPECT_EQ(read.content, answer.content) << answer.text << " by " << bytes;
      EXPECT_EQ(read.calls, answer.calls) << answer.text << " by " << bytes;
    }
}

TEST(ToolCalls, ReturnACallWhenItIsComplete) {
  ToolCallReader reader({{"f"}});
  EXPECT_EQ(reader.push("I look. <tool").content, "I look.");
  EXPECT_THAT(reader.push("_call>{\"name\": \"f\", \"arguments\": {}}").calls, IsEmpty());
  EXPECT_THAT(reader.push("</tool_call>").calls, ElementsAre(ToolCall{"f", "{}"}));
}

TEST(ToolCalls, PassOtherTextAtOnce) {
  ToolCallReader reader({{"f"}});
  EXPECT_EQ(reader.push("Hello").content, "Hello");
  EXPECT_EQ(reader.push(" a <b").content, " a <b");
  EXPECT_EQ(ToolCallReader({{"f"}}).push("{\"a\": 1").content, "{\"a\": 1");
}

TEST(ToolCalls, ReadForcedAnswers) {
  const ToolCallOptions forced{.functions = {"f"}, .is_forced = true};
  const CallsAndContent read = read_in_pieces("{\"name\": \"f\", \"arguments\": {\"a\": \"<tool_call>\"}}", 3, forced);
  EXPECT_EQ(read.content, "");
  EXPECT_THAT(read.calls, ElementsAre(ToolCall{"f", "{\"a\":\"<tool_call>\"}"}));
  EXPECT_EQ(read_in_pieces("{\"name\": \"f\", \"argu", 3, forced).content, "{\"name\": \"f\", \"argu");  // cut off
}

TEST(ToolCalls, DropAllButTheFirstIfOneIsAllowed) {
  ToolCallReader reader({.functions = {"f", "g"}, .only_one = true});
  const auto read =
      reader.push("[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]");
  EXPECT_THAT(read.calls, ElementsAre(ToolCall{"f", "{}"}));
  EXPECT_EQ(reader.calls(), 1);
}

TEST(ToolCalls, HoldLongArguments) {
  const std::string text =
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"" + std::string(200000, 'x') + "\"}}</tool_call>";
  EXPECT_EQ(read_in_pieces(text, 1).calls.size(), 1u);
}

// A reader that begins again with each piece takes many minutes.
TEST(ToolCalls, ReadEachByteOfLongCallsOnce) {
  const std::string long_text(size_t{2} << 20, 'x'), space(size_t{1} << 18, ' ');
  const std::string value = "{\"name\": \"f\", \"arguments\": {\"a\": \"" + long_text + "\"}}";
  const std::string llama = "{" + space + "\"name\": \"f\", \"parameters\": {\"a\": \"" + long_text + "\"}}";
  for (const std::string& text :
       {"<tool_call>" + value + "</tool_call>", space + "<tool_call>" + space + value + space + "</tool_call>",
        "[TOOL_CALLS]" + space + "[" + value + "]", llama})
    EXPECT_EQ(read_in_pieces(text, 8).calls.size(), 1u) << text.substr(0, 20);
  EXPECT_EQ(read_in_pieces("[TOOL_CALLS][" + value + "]" + space + "<tool_call>" + value, 8).calls.size(), 2u);
}

/// A tokenizer with the one special token [TOOL_CALLS].
class MistralTokenizer final : public text::Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    return text == "[TOOL_CALLS]" ? std::vector<int64_t>{1} : std::vector<int64_t>(text.size(), 0);
  }
  std::string piece(int64_t id) const override { return id == 1 ? "" : "x"; }
  std::string spelling(int64_t id) const override { return id == 1 ? "[TOOL_CALLS]" : "x"; }
  int64_t vocabulary_size() const override { return 2; }
  int64_t end_id() const override { return -1; }
};

TEST(ToolCalls, ShowSpecialTokensThatOpenThem) {
  const MistralTokenizer tokenizer;
  EXPECT_THAT(call_tokens(tokenizer), ElementsAre(1));
  const SpelledTokens spelled(tokenizer, call_tokens(tokenizer));
  EXPECT_EQ(spelled.piece(1), "[TOOL_CALLS]");
  EXPECT_EQ(spelled.piece(0), "x");
}

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
    const CallsAndContent read = read_in_pieces(text, 1, {.functions = {"f", "g"}, .is_forced = true});
    ASSERT_EQ(read.calls.size(), 1u) << text;
    EXPECT_EQ(read.content, "") << text;
    names.insert(read.calls[0].name);
  }
  EXPECT_THAT(names, ElementsAre("f", "g"));
}

}  // namespace
}  // namespace colossal::serve::tool_calls_test
