#include "colossal/base/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "colossal/base/config.h"
#include "support/thrown_message.h"

namespace colossal::json_fields_test {
namespace {

using nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::Pair;

/// A struct with a field of each kind, without sections.
struct Options {
  bool stream = false;
  int64_t tokens = 100, sinks = -1, memory = 0;
  double temperature = 0.5;
  std::string mode = "plain", name, schema;
  std::vector<std::string> stop{"x"};
  std::vector<int64_t> ids;
  std::map<int64_t, double> bias{{3, 1.0}};
  void fields(Fields& f) {
    f.flag("stream", stream, "whether tokens come one by one");
    f.integer("tokens", tokens, "tokens", "longest answer", 1, 1000);
    f.integer_or_off("sinks", sinks, "tokens", "first tokens that stay");
    f.bytes("memory", memory, "size of the cache");
    f.number("temperature", temperature, "", "of sampling");
    f.choice("mode", mode, {"plain", "chat"}, "how the prompt is read");
    f.text("name", name, "of the user");
    f.json("schema", schema, "schema of the answer");
    f.texts("stop", stop, "texts that end the answer");
    f.integers("ids", ids, "", "tokens that end the answer");
    f.numbers_by_id("bias", bias, "added to logits");
  }
};

std::string refusal(const char* text) {
  Options options;
  return test::thrown_message([&] { read_json(ordered_json::parse(text), options, "chat"); });
}

TEST(JsonFields, SetsTheMembersAndNamesThem) {
  Options options;
  const auto given = read_json(ordered_json::parse(R"({"temperature": 1, "stream": true, "tokens": 7, "sinks": 4,
      "memory": "2KiB", "mode": "chat", "name": "Ada", "schema": {"type": "object"}, "stop": ["a", "b"], "ids": [1, 2],
      "bias": {"50256": -100, "7": 0.5}})"),
                               options, "chat");
  EXPECT_THAT(given, ElementsAre("temperature", "stream", "tokens", "sinks", "memory", "mode", "name", "schema", "stop",
                                 "ids", "bias"));
  EXPECT_TRUE(options.stream);
  EXPECT_EQ(options.tokens, 7);
  EXPECT_EQ(options.sinks, 4);
  EXPECT_EQ(options.memory, 2048);
  EXPECT_EQ(options.temperature, 1);
  EXPECT_EQ(options.mode, "chat");
  EXPECT_EQ(options.name, "Ada");
  EXPECT_EQ(options.schema, R"({"type":"object"})");
  EXPECT_THAT(options.stop, ElementsAre("a", "b"));
  EXPECT_THAT(options.ids, ElementsAre(1, 2));
  EXPECT_THAT(options.bias, ElementsAre(Pair(3, 1.0), Pair(7, 0.5), Pair(50256, -100.0)));
}

TEST(JsonFields, KeepsFieldsThatAreNotGiven) {
  Options options;
  EXPECT_TRUE(read_json(ordered_json::object(), options, "chat").empty());
  EXPECT_EQ(options.tokens, 100);
  EXPECT_THAT(options.stop, ElementsAre("x"));
  read_json(ordered_json::parse(R"({"stop": "end", "sinks": -1, "schema": null})"), options, "chat");
  EXPECT_THAT(options.stop, ElementsAre("end"));
  EXPECT_EQ(options.sinks, -1);
  EXPECT_EQ(options.schema, "");
}

TEST(JsonFields, RefusesOtherTypesAndRangesByName) {
  EXPECT_EQ(refusal("[1]"), "[chat] options must be a JSON object: got [1]");
  EXPECT_EQ(refusal(R"({"temprature": 1})"), "[chat] unknown option temprature, did you mean `temperature`?");
  EXPECT_EQ(refusal(R"({"stream": 1})"), "[chat] stream must be true or false: got 1");
  EXPECT_EQ(refusal(R"({"tokens": 1.5})"), "[chat] tokens must be a whole number: got 1.5");
  EXPECT_EQ(refusal(R"({"tokens": 18446744073709551615})"),
            "[chat] tokens must be a whole number: got 18446744073709551615");
  EXPECT_EQ(refusal(R"({"tokens": 0})"), "[chat] tokens must be at least 1: got 0");
  EXPECT_EQ(refusal(R"({"tokens": 1001})"), "[chat] tokens must be at most 1000: got 1001");
  EXPECT_EQ(refusal(R"({"sinks": -2})"), "[chat] sinks must not be negative: got -2");
  EXPECT_EQ(refusal(R"({"temperature": "hot"})"), "[chat] temperature must be a number: got \"hot\"");
  EXPECT_EQ(refusal(R"({"temperature": null})"), "[chat] temperature must be a number: got null");
  EXPECT_EQ(refusal(R"({"mode": "shout"})"), "[chat] mode must be one of plain, chat: got \"shout\"");
  EXPECT_EQ(refusal(R"({"name": 3})"), "[chat] name must be a string: got 3");
  EXPECT_EQ(refusal(R"({"stop": [3]})"), "[chat] stop must be a string: got 3");
  EXPECT_EQ(refusal(R"({"ids": 3})"), "[chat] ids must be a list: got 3");
  EXPECT_EQ(refusal(R"({"bias": [1]})"), "[chat] bias must be an object: got [1]");
  EXPECT_EQ(refusal(R"({"bias": {"x": 1}})"), "[chat] bias must have numbers by their ids: got x");
  EXPECT_EQ(refusal(R"({"bias": {"-1": 1}})"), "[chat] bias must have numbers by their ids: got -1");
  EXPECT_EQ(refusal(R"({"bias": {"1": "x"}})"), "[chat] bias must be a number: got \"x\"");
}

TEST(JsonFields, RefusesStructsWithSections) {
  struct Nested {
    Options options;
    void fields(Fields& f) { f.section("options", options, "of the answer"); }
  } nested;
  EXPECT_EQ(test::thrown_message([&] { read_json(ordered_json::object(), nested, "chat"); }),
            "[chat] options in JSON must be flat: got a struct with sections");
}

TEST(JsonFields, ReadsTomlOfTheSameStruct) {
  Options options, again;
  options.bias[50256] = -100, options.sinks = 2, options.schema = R"({"type":"object"})";
  again.bias.clear();
  ConfigDocument::parse(to_toml(options), "x.toml").read(again);
  EXPECT_EQ(again.bias, options.bias);
  EXPECT_EQ(again.sinks, 2);
  EXPECT_EQ(again.schema, options.schema);
  ConfigDocument flags;
  flags.set("--bias.9=2.5");
  flags.set("--sinks=-1");
  flags.read(again);
  EXPECT_EQ(again.bias.at(9), 2.5);
  EXPECT_EQ(again.sinks, -1);
  const auto refused = [](const char* toml) {
    return test::thrown_message([&] {
      Options into;
      ConfigDocument::parse(toml, "x.toml").read(into);
    });
  };
  EXPECT_EQ(refused("bias = {x = 1}"), "[config] x.toml:1: `bias` must have numbers by their ids: got x");
  EXPECT_EQ(refused("bias = {1 = \"a\"}"), "[config] x.toml:1: `bias.1` must be a number: got \"a\"");
  EXPECT_EQ(refused("bias = 3"),
            "[config] x.toml:1: `bias` must be a table of numbers by ids such as {7 = 0.5}: got 3");
  EXPECT_EQ(refused("sinks = -2"), "[config] x.toml:1: `sinks` must be at least 0 (tokens): got -2");
}

TEST(JsonFields, DescribesTheFields) {
  const auto keys = describe_config(Options());
  const auto of = [&](const std::string& name) {
    return *std::find_if(keys.begin(), keys.end(), [&](const KeyHelp& key) { return key.key == name; });
  };
  EXPECT_EQ(of("sinks").range, ">= 0, or -1 = off");
  EXPECT_EQ(of("schema").type, "JSON");
  EXPECT_EQ(of("bias").type, "numbers by id");
  EXPECT_EQ(of("bias").default_value, "{3 = 1.0}");
}

}  // namespace
}  // namespace colossal::json_fields_test
