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
    {"{\"name\": \"other\", \"parameters\": {}} ", "{\"name\": \"other\", \"parameters\": {}} ", {}},
    {"{\"a\": 1}", "{\"a\": 1}", {}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}} x", "<tool_call>{\"name\": \"f\", \"arguments\": {}} x", {}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a", {}},
    {"<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", {}},
    {"[TOOL_CALLS]h[ARGS]{}", "[TOOL_CALLS]h[ARGS]{}", {}},
    {"[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS]", {}},
    {R"({"name": "f"})", R"({"name": "f"})", {}},
    {R"({"name": "f", "arguments": {}, "parameters": {}})", R"({"name": "f", "arguments": {}, "parameters": {}})", {}},
    {R"({"name": "f", "arguments": "no JSON"})", R"({"name": "f", "arguments": "no JSON"})", {}},
    {R"([{"a": 1}])", R"([{"a": 1}])", {}},
    {"[1] says so", "[1] says so", {}},
    {R"(<tool_call>{"name": "f", "arguments": {"a": "C:\path"}}</tool_call>)",
     R"(<tool_call>{"name": "f", "arguments": {"a": "C:\path"}}</tool_call>)",
     {}},
    {"[TOOL_CALLS]f[ARGS]{\"a\": \"x\\\ny\"}", "[TOOL_CALLS]f[ARGS]{\"a\": \"x\\\ny\"}", {}},  // a line that goes on
    {"<tool_call>other\n<arg_key>a</arg_key></tool_call>", "<tool_call>other\n<arg_key>a</arg_key></tool_call>", {}},
    {"<function=f><parameter=a>1</function>", "<function=f><parameter=a>1</function>", {}},
    {"<|channel|>commentary<|message|>Hm", "<|channel|>commentary<|message|>Hm", {}},
    {"<|tool_calls|> none", "<|tool_calls|> none", {}},
    {"<|tool_call_start|>[f(1)]<|tool_call_end|>", "<|tool_call_start|>[f(1)]<|tool_call_end|>", {}},
    {"<|tool_call_start|>[f(a=b)]<|tool_call_end|>", "<|tool_call_start|>[f(a=b)]<|tool_call_end|>", {}},
    {"use functools.partial", "use functools.partial", {}},
    {"[TOOL_CALLS][]", "[TOOL_CALLS][]", {}},
    {"<tool_call>{]}</tool_call>", "<tool_call>{]}</tool_call>", {}},
};

const std::vector<ToolCall> kF12{{"f", R"({"a":1,"b":2})"}};
const std::vector<ToolCall> kBoth{{"f", R"({"a":"x"})"}, {"g", R"({"a":"y z","n":1})"}};

// Spellings of one family that models really write.
const std::vector<WrittenAnswer> kSpellings{
    {R"({"type": "function", "name": "f", "parameters": {"a": 1, "b": 2}})", "", kF12},
    {R"({"name": "f", "arguments": {"a": 1, "b": 2}})", "", kF12},
    {R"({"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": 2}}})", "", kF12},
    {R"({"function": "f", "parameters": {"a": 1, "b": 2}})", "", kF12},
    {R"([{"name": "f", "arguments": {"a": 1, "b": 2}}])", "", kF12},
    {R"({"name": "f", "parameters": {}}; {"name": "g", "parameters": {}})", "", {{"f", "{}"}, {"g", "{}"}}},
    {R"(<|python_tag|>{"name": "f", "parameters": {"a": 1, "b": 2}})", "", kF12},
    {R"(<tool_call>{"name": "f", "arguments": "{\"a\": 1, \"b\": 2}"}</tool_call>)", "", kF12},
    {R"(<tool_call>{"name": "f", "parameters": {"a": 1, "b": 2}}</tool_call>)", "", kF12},
    {R"(<tool_call>{"name": "f"}</tool_call>)", "", {{"f", "{}"}}},
    {R"(<tool_call>{"name": "f", "arguments": ""}</tool_call>)", "", {{"f", "{}"}}},
    {R"(<tool_call>{"name": "f", "arguments": null}</tool_call>)", "", {{"f", "{}"}}},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>", "", {{"f", R"({"a":"x\ny"})"}}},
    {"<tool_call>{\"name\": \"f\"}\n<tool_call>{\"name\": \"g\"}</tool_call>", "", {{"f", "{}"}, {"g", "{}"}}},
    {R"([TOOL_CALLS]f[ARGS]{"a": 1, "b": 2})", "", kF12},
    {R"(<|tool_call_start|>[f(a={'b': [1, -2.5, True, None]}, c='it\'s', )]<|tool_call_end|>)",
     "",
     {{"f", R"({"a":{"b":[1,-2.5,true,null]},"c":"it's"})"}}},
    {R"(<|tool_call>call:f{a:{b:[<|"|>x"y<|"|>,true]},c:{}}<tool_call|>)",
     "",
     {{"f", R"({"a":{"b":["x\"y",true]},"c":{}})"}}},
};

// Two calls, as the chat template of each family writes them.
const std::vector<WrittenAnswer> kFamilies{
    // Apriel, Nemotron Nano 2, MiniMax-M1
    {R"(<tool_calls>[{"name": "f", "arguments": {"a": "x"}, "id": "1"}, )"
     R"({"name": "g", "arguments": {"a": "y z", "n": 1}}]</tool_calls>)"},
    {R"(<TOOLCALL>[{"name": "f", "arguments": {"a": "x"}}, )"
     R"({"name": "g", "arguments": {"a": "y z", "n": 1}}]</TOOLCALL>)"},
    {"<tool_calls>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\"}}\n{\"name\": \"g\", \"arguments\": {\"a\": \"y "
     "z\", "
     "\"n\": 1}}\n</tool_calls>"},
    // Apertus, Granite 3, FireFunction
    {R"(<|tools_prefix|>[{"f": {"a": "x"}}, {"g": {"a": "y z", "n": 1}}]<|tools_suffix|>)"},
    {R"(<|tool_call|>[{"name": "f", "arguments": {"a": "x"}}, {"name": "g", "arguments": {"a": "y z", "n": 1}}])"},
    {R"( functools[{"name": "f", "arguments": {"a": "x"}}, {"name": "g", "arguments": {"a": "y z", "n": 1}}])"},
    // Ministral 3, Devstral, Mistral Small 3.2
    {R"([TOOL_CALLS]f[ARGS]{"a": "x"}[TOOL_CALLS]g[ARGS]{"a": "y z", "n": 1})"},
    {R"([TOOL_CALLS]f[CALL_ID]call00001[ARGS]{"a": "x"}[TOOL_CALLS]g[CALL_ID]call00002[ARGS]{"a": "y z", "n": 1})"},
    // DeepSeek-V3.1, DeepSeek-V3 and R1, DeepSeek-V3.2, V4
    {"<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>f<\uff5ctool\u2581sep\uff5c>{"
     "\"a\": \"x\"}"
     "<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>g<\uff5ctool\u2581sep\uff5c>"
     "{\"a\": \"y z\", \"n\": 1}<\uff5ctool\u2581call\u2581end\uff5c><\uff5ctool\u2581calls\u2581end\uff5c>"},
    {"<\uff5ctool\u2581calls\u2581begin\uff5c><\uff5ctool\u2581call\u2581begin\uff5c>function<"
     "\uff5ctool\u2581sep\uff5c>f\n```json\n"
     "{\"a\": \"x\"}\n```<\uff5ctool\u2581call\u2581end\uff5c>\n<\uff5ctool\u2581call\u2581begin\uff5c>function"
     "<\uff5ctool\u2581sep\uff5c>g\n```json\n{\"a\": \"y z\", \"n\": 1}\n```<\uff5ctool\u2581call\u2581end\uff5c>"
     "<\uff5ctool\u2581calls\u2581end\uff5c>"},
    {"<\uff5cDSML\uff5cfunction_calls>\n<\uff5cDSML\uff5cinvoke name=\"f\">\n<\uff5cDSML\uff5cparameter name=\"a\" "
     "string=\"true\">x"
     "</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n<\uff5cDSML\uff5cinvoke "
     "name=\"g\">\n<\uff5cDSML\uff5cparameter "
     "name=\"a\" string=\"true\">y z</\uff5cDSML\uff5cparameter>\n<\uff5cDSML\uff5cparameter name=\"n\" "
     "string=\"false\">1"
     "</\uff5cDSML\uff5cparameter>\n</\uff5cDSML\uff5cinvoke>\n</\uff5cDSML\uff5cfunction_calls>"},
    // LFM2, Gemma 4
    {R"(<|tool_call_start|>[f(a='x'), g(a="y z", n=1)]<|tool_call_end|>)"},
    {R"(<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|><|tool_call>call:g{a:<|"|>y z<|"|>,n:1}<tool_call|>)"},
    // Kimi K2, Solar, gpt-oss (by its template, and as it answers)
    {R"(<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>)"
     R"({"a": "x"}<|tool_call_end|>)"
     R"(<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{"a": "y z", "n": 1}<|tool_call_end|>)"
     R"(<|tool_calls_section_end|>)"},
    {R"(<|tool_calls|><|tool_call:begin|>c1<|tool_call:name|>f<|tool_call:args|>{"a": "x"}<|tool_call:end|>)"
     R"(<|tool_call:begin|>c2<|tool_call:name|>g<|tool_call:args|>{"a": "y z", "n": 1}<|tool_call:end|><|calls|>)"},
    {R"( to=functions.f<|channel|>commentary json<|message|>{"a": "x"}<|call|><|start|>assistant)"
     R"(<|channel|>commentary to=functions.g <|constrain|>json<|message|>{"a": "y z", "n": 1})"},
    // Functionary 3.1, Qwen3-Coder and Nemotron 3 (with and without <tool_call>), Seed-OSS
    {R"(<function=f>{"a": "x"}</function><function=g>{"a": "y z", "n": 1}</function>)"},
    {"<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n"
     "<parameter=a>\ny z\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"},
    {"<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n<function=g>\n<parameter=a>\ny z\n</parameter>\n"
     "<parameter=n>\n1\n</parameter>\n</function>"},
    {"<seed:tool_call>\n<function=f>\n<parameter=a>x</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n"
     "<function=g>\n<parameter=a>y z</parameter>\n<parameter=n>1</parameter>\n</function>\n</seed:tool_call>"},
    // GLM-4.6, GLM-4.7 and Laguna, Hunyuan 3
    {"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>x</arg_value>\n</tool_call>\n<tool_call>g\n<arg_key>a</arg_key>\n"
     "<arg_value>y z</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
    {"<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call><tool_call>g<arg_key>a</arg_key>"
     "<arg_value>y z</arg_value><arg_key>n</arg_key><arg_value>1</arg_value></tool_call>"},
    {"<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a</"
     "arg_key:opensource>\n"
     "<arg_value:opensource>x</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>g"
     "<tool_sep:opensource>\n<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>y z"
     "</arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>1"
     "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>"},
    // MiniMax-M2, Muse, MiniCPM5, Kimi K3
    {"<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">x</parameter>\n</invoke>\n<invoke name=\"g\">\n"
     "<parameter name=\"a\">y z</parameter>\n<parameter name=\"n\">1</parameter>\n</invoke>\n</minimax:tool_call>"},
    {"<atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"a\">x</atem:parameter>\n</atem:invoke>\n"
     "<atem:invoke name=\"g\"><atem:parameter name=\"a\">y z</atem:parameter><atem:parameter name=\"n\">1"
     "</atem:parameter></atem:invoke>\n</atem:function_calls>"},
    {"<function name=\"f\"><param name=\"a\">x</param></function>\n<function name=\"g\"><param name=\"a\">"
     "<![CDATA[y z]]></param><param name=\"n\">1</param></function>"},
    {"<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>x"
     "<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"g\" index=\"2\"<|sep|><|open|>argument key=\"a\" "
     "type=\"string\"<|sep|>y z<|close|>argument<|sep|><|open|>argument key=\"n\" type=\"number\"<|sep|>1"
     "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"},
};

void expect_read(const WrittenAnswer& answer) {
  for (const size_t bytes : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, size_t{1000}}) {
    const CallsAndContent read = read_in_pieces(answer.text, bytes);
    EXPECT_EQ(read.content, answer.content) << answer.text << " by " << bytes;
    EXPECT_EQ(read.calls, answer.calls) << answer.text << " by " << bytes;
  }
}

TEST(ToolCalls, ReadSpellingsWhoseMeaningIsCertain) {
  for (const WrittenAnswer& answer : kSpellings) expect_read(answer);
}

TEST(ToolCalls, ReadTheFormOfEachFamily) {
  for (const WrittenAnswer& answer : kFamilies) {
    expect_read({answer.text, "", kBoth});
    expect_read({"I look.\n" + answer.text + "\n", "I look.", kBoth});
  }
}

TEST(ToolCalls, TakeTheTypesOfTaggedValuesFromTheParameters) {
  const auto read = [](const char* schema, const std::string& value) {
    const ordered_json function = {{"name", "f"},
                                   {"parameters", {{"properties", {{"a", ordered_json::parse(schema)}}}}}};
    auto tools = std::make_shared<const ordered_json>(ordered_json::array({{{"function", function}}}));
    const CallsAndContent answer =
        read_in_pieces("<tool_call>f<arg_key>a</arg_key><arg_value>" + value + "</arg_value></tool_call>", 1000,
                       {.functions = {"f"}, .tools = std::move(tools)});
    return answer.calls.empty() ? "" : ordered_json::parse(answer.calls[0].arguments)["a"].dump();
  };
  EXPECT_EQ(read(R"({"type": "string"})", "12"), R"("12")");
  EXPECT_EQ(read(R"({"enum": ["1", "2"]})", "1"), R"("1")");
  EXPECT_EQ(read(R"({"type": "integer"})", "12"), "12");
  EXPECT_EQ(read(R"({"type": ["string", "null"]})", "null"), "null");
  EXPECT_EQ(read(R"({"anyOf": [{"type": "boolean"}, {"type": "null"}]})", "True"), "true");
  EXPECT_EQ(read(R"({"type": "array"})", "[1, \"b\"]"), R"([1,"b"])");
  EXPECT_EQ(read("{}", "12"), "12");
  EXPECT_EQ(read("{}", "\"quoted\""), R"("\"quoted\"")");
  EXPECT_EQ(read("{}", "a < b"), R"("a < b")");
  // a text that may be null, or another value
  EXPECT_EQ(read(R"({"type": ["string", "null"]})", "12"), R"("12")");
  EXPECT_EQ(read(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})", "True"), R"("True")");
  EXPECT_EQ(read(R"({"type": ["string", "integer"]})", "12"), "12");
  EXPECT_EQ(read(R"({"type": ["string", "integer"]})", "1.5"), R"("1.5")");
  EXPECT_EQ(read(R"({"type": ["string", "number"]})", "12"), "12");
}

// Clients write the parameters, and models the names: an exception would end the request with status 500.
TEST(ToolCalls, ReadTagsForParametersOfAnyShape) {
  for (const char* parameters : {"[]", "3", "{\"properties\": []}", "{\"properties\": [[1]]}", "{\"properties\": 3}",
                                 "{\"properties\": {\"a\": 3}}", "{\"properties\": {\"0\": true}}"})
    for (const char* name : {"a", "0", "-", "01", "~2", "a/b", "99999999999999999999999"}) {
      const ordered_json function = {{"name", "f"}, {"parameters", ordered_json::parse(parameters)}};
      auto tools = std::make_shared<const ordered_json>(ordered_json::array({{{"function", function}}}));
      const std::string text = concat("<function=f><parameter=", name, ">1</parameter></function>");
      const CallsAndContent read = read_in_pieces(text, 1000, {.functions = {"f"}, .tools = std::move(tools)});
      EXPECT_THAT(read.calls, ElementsAre(ToolCall{"f", concat("{\"", name, "\":1}")})) << parameters;
    }
}

TEST(ToolCalls, ReadPiecesOfAnySize) {
  for (const WrittenAnswer& answer : kAnswers) expect_read(answer);
}

TEST(ToolCalls, ReadDamagedAnswersAlikeInPiecesOfAnySize) {
  std::mt19937 random(11);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  std::vector<std::string> texts;
  for (const auto* answers : {&kAnswers, &kSpellings, &kFamilies})
    for (const WrittenAnswer& answer : *answers) texts.push_back(answer.text);
  for (int i = 0; i < 3000; ++i) {
    std::string text = texts[below(texts.size())];
    if (text.empty()) continue;
    const std::string& other = texts[below(texts.size())];
    switch (below(4)) {
      case 0:
        text.erase(below(text.size()), 1 + below(8));
        break;
      case 1:
        text[below(text.size())] = static_cast<char>("{}[]<>\"| \n;x"[below(12)]);
        break;
      case 2:
        text.insert(below(text.size()), other.substr(0, below(other.size() + 1)));
        break;
      default:
        text.resize(below(text.size()));
        text += other;
        break;
    }
    const CallsAndContent whole = read_in_pieces(text, 1000000);
    for (const size_t bytes : {size_t{1}, size_t{5}}) {
      const CallsAndContent read = read_in_pieces(text, bytes);
      ASSERT_EQ(read.content, whole.content) << text << " by " << bytes;
      ASSERT_EQ(read.calls, whole.calls) << text << " by " << bytes;
    }
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

/// A tokenizer with the special tokens [TOOL_CALLS] and [ARGS].
class MistralTokenizer final : public text::Tokenizer {
 public:
  std::vector<int64_t> encode(std::string_view text) const override {
    if (text == "[TOOL_CALLS]") return {1};
    return text == "[ARGS]" ? std::vector<int64_t>{2} : std::vector<int64_t>(text.size(), 0);
  }
  std::string piece(int64_t id) const override { return id > 0 ? "" : "x"; }
  std::string spelling(int64_t id) const override { return id == 0 ? "x" : id == 1 ? "[TOOL_CALLS]" : "[ARGS]"; }
  int64_t vocabulary_size() const override { return 3; }
  int64_t end_id() const override { return -1; }
};

TEST(ToolCalls, ShowSpecialTokensWithinThem) {
  const MistralTokenizer tokenizer;
  EXPECT_THAT(call_tokens(tokenizer), ElementsAre(1, 2));
  const SpelledTokens spelled(tokenizer, call_tokens(tokenizer));
  EXPECT_EQ(spelled.piece(1), "[TOOL_CALLS]");
  EXPECT_EQ(spelled.piece(0), "x");
}

}  // namespace
}  // namespace colossal::serve::tool_calls_test
