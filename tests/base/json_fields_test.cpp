#include "colossal/base/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

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

/// A struct of a stored file.
struct Call {
  std::string group;
  int64_t calls = 0;
  double bytes = 0;
  std::vector<int64_t> shape;
  void fields(Fields& f) {
    f.member("group", group);
    f.optional().member("calls", calls);
    f.count("bytes", bytes);
    f.optional(shape.empty()).member("shape", shape);
  }
  bool operator==(const Call&) const = default;
};
struct Seconds {
  double compute = 0, bubble = 0;
  void fields(Fields& f) { f.member("compute", compute), f.member("bubble", bubble); }
  bool operator==(const Seconds&) const = default;
};
struct Role {
  std::string name;
  int32_t rank = 0;
  bool fits = true;
  std::vector<Call> calls;
  Seconds seconds;
  std::string note;
  Seconds more{.compute = 7};
  std::vector<Call> links;
  void fields(Fields& f) {
    f.member("name", name);
    f.member("rank", rank);
    f.member("fits", fits);
    f.member("calls", calls);
    f.member("seconds", seconds);
    f.optional(note.empty()).json("note", note, "");
    f.optional(more.compute == 7).member("more", more);
    f.optional(links.empty()).member("links", links);
  }
  bool operator==(const Role&) const = default;
};
struct Roles {
  std::vector<Role> roles;
  void fields(Fields& f) { f.member("roles", roles); }
};

constexpr char kRoles[] =
    R"({"roles":[{"name":"first","rank":3,"fits":false,"calls":[{"group":"data","calls":2,"bytes":5},)"
    R"({"group":"tensor","calls":0,"bytes":1.5,"shape":[4,2]}],"seconds":{"compute":1.0,"bubble":0.25}},)"
    R"({"name":"last","rank":0,"fits":true,"calls":[],"seconds":{"compute":0.0,"bubble":0.0},"note":{"a":[2],"b":1},)"
    R"("more":{"compute":2.0,"bubble":3.0},"links":[{"group":"","calls":0,"bytes":9.007199254740994e+15}]}]})";

std::vector<Role> roles() {
  return {{.name = "first",
           .rank = 3,
           .fits = false,
           .calls = {{"data", 2, 5, {}}, {"tensor", 0, 1.5, {4, 2}}},
           .seconds = {1, 0.25}},
          {.name = "last", .note = R"({"a":[2],"b":1})", .more = {2, 3}, .links = {{"", 0, 9007199254740994, {}}}}};
}

template <class Json>
std::string stored_refusal(const Json& object) {
  return test::thrown_message([&] { read_stored<Roles>(object, "plan"); });
}

TEST(StoredJson, WritesMembersInTheirOrder) {
  EXPECT_EQ(json_line(to_json_object(Roles{roles()})), kRoles);
  EXPECT_EQ(json_line(to_json_list(std::vector<Seconds>{{1, 2}, {3, 4.5}})),
            R"([{"compute":1.0,"bubble":2.0},{"compute":3.0,"bubble":4.5}])");
  EXPECT_EQ(json_line(to_json_list(std::vector<Seconds>())), "[]");
  EXPECT_EQ(json_line("a\xff"), "\"a\xEF\xBF\xBD\"");
}

TEST(StoredJson, WritesEachKindOfField) {
  Options options;
  options.memory = 2048, options.schema = R"({"type":"object"})", options.bias = {{3, 1}, {7, -0.5}};
  EXPECT_EQ(json_line(to_json_object(options)),
            R"({"stream":false,"tokens":100,"sinks":-1,"memory":2048,"temperature":0.5,"mode":"plain","name":"",)"
            R"("schema":{"type":"object"},"stop":["x"],"ids":[],"bias":{"3":1.0,"7":-0.5}})");
  options.schema.clear();
  EXPECT_TRUE(to_json_object(options).at("schema").is_null());
  const auto again = read_stored<Options>(to_json_object(options), "chat");
  EXPECT_EQ(to_toml(again), to_toml(options));
}

TEST(StoredJson, ReadsWhatItWrites) {
  EXPECT_EQ(read_stored<Roles>(nlohmann::json::parse(kRoles), "plan").roles, roles());
  EXPECT_EQ(read_stored<Roles>(ordered_json::parse(kRoles), "plan").roles, roles());
}

TEST(StoredJson, AcceptsMembersOfOtherVersions) {
  const auto read = [](const char* text) { return read_stored<Role>(nlohmann::json::parse(text), "plan"); };
  const Role role =
      read(R"({"name": "x", "rank": 2.0, "fits": true, "later": [1], "seconds": {"bubble": 1, "compute": 2},
                             "calls": [{"group": "data", "bytes": 1, "later": 3}]})");
  EXPECT_EQ(role, (Role{.name = "x", .rank = 2, .calls = {{"data", 0, 1, {}}}, .seconds = {2, 1}}));
}

TEST(StoredJson, NamesThePlaceOfAWrongMember) {
  auto object = nlohmann::json::parse(kRoles);
  const auto with = [&](const char* place, const nlohmann::json& value) {
    auto changed = object;
    changed[nlohmann::json::json_pointer(place)] = value;
    return stored_refusal(changed);
  };
  EXPECT_EQ(with("/roles/0/calls/1/bytes", nullptr), "[plan] roles[0].calls[1].bytes must be a number: got null");
  EXPECT_EQ(with("/roles/0/calls/1/shape", {1, "x"}),
            "[plan] roles[0].calls[1].shape must be a whole number: got \"x\"");
  EXPECT_EQ(with("/roles/0/calls/1", 3), "[plan] roles[0].calls[1] must be an object: got 3");
  EXPECT_EQ(with("/roles/1/calls", "x"), "[plan] roles[1].calls must be a list: got \"x\"");
  EXPECT_EQ(with("/roles/1/links", nullptr), "[plan] roles[1].links must be a list: got null");
  EXPECT_EQ(with("/roles/1/seconds", 4), "[plan] roles[1].seconds must be an object: got 4");
  EXPECT_EQ(with("/roles/1/rank", 1.5), "[plan] roles[1].rank must be a whole number: got 1.5");
  EXPECT_EQ(with("/roles/1/rank", 1e300), "[plan] roles[1].rank must be a whole number: got 1e+300");
  EXPECT_EQ(with("/roles/1/rank", int64_t{1} << 31), "[plan] roles[1].rank must be at most 2147483647: got 2147483648");
  EXPECT_EQ(with("/roles", nlohmann::json::object()), "[plan] roles must be a list: got {}");
  EXPECT_EQ(stored_refusal(nlohmann::json::array()), "[plan] must be a JSON object: got []");
  EXPECT_EQ(stored_refusal(ordered_json::parse(R"({"roles": [{}]})")), "[plan] roles[0].name is missing");
}

TEST(StoredJson, KeepsIntegersInTheRangeOfTheirType) {
  struct Sizes {
    size_t bytes = 0;
    uint8_t code = 0;
    void fields(Fields& f) { f.member("bytes", bytes), f.member("code", code); }
  };
  const auto read = [](const char* text) { return read_stored<Sizes>(nlohmann::json::parse(text), "x"); };
  const Sizes sizes = read(R"({"bytes": 9223372036854775807, "code": 255})");
  EXPECT_EQ(json_line(to_json_object(sizes)), R"({"bytes":9223372036854775807,"code":255})");
  const auto refused = [&](const char* text) { return test::thrown_message([&] { read(text); }); };
  EXPECT_EQ(refused(R"({"bytes": -1, "code": 0})"), "[x] bytes must not be negative: got -1");
  EXPECT_EQ(refused(R"({"bytes": 1, "code": 256})"), "[x] code must be at most 255: got 256");
}

TEST(StoredJson, HasNullForAnEmptyOptional) {
  struct Known {
    std::optional<double> share;
    std::optional<Seconds> seconds;
    std::optional<std::string> note;
    void fields(Fields& f) {
      f.member("share", share);
      f.member("seconds", seconds);
      f.optional(!note).member("note", note);
    }
  };
  const auto again = [](const std::string& text) {
    return json_line(to_json_object(read_stored<Known>(nlohmann::json::parse(text), "x")));
  };
  const std::string full = R"({"share":0.5,"seconds":{"compute":1.0,"bubble":2.0},"note":"n"})";
  EXPECT_EQ(again(full), full);
  EXPECT_EQ(json_line(to_json_object(Known())), R"({"share":null,"seconds":null})");
  EXPECT_EQ(again(R"({"share":null,"seconds":null})"), R"({"share":null,"seconds":null})");
  EXPECT_EQ(test::thrown_message([&] { again(R"({"share": 1})"); }), "[x] seconds is missing");
  EXPECT_EQ(test::thrown_message([&] { again(R"({"share": 1, "seconds": {"compute": 3}})"); }),
            "[x] seconds.bubble is missing");
  Known known;
  EXPECT_EQ(test::thrown_message([&] { to_toml(known); }),
            "[config] a value that may be missing must be in JSON: got `share`");
}

TEST(StoredJson, NamesThePlaceOfAMissingMember) {
  const auto without = [&](const char* object, const char* member) {
    auto changed = nlohmann::json::parse(kRoles);
    changed[nlohmann::json::json_pointer(object)].erase(member);
    return stored_refusal(changed);
  };
  EXPECT_EQ(without("", "roles"), "[plan] roles is missing");
  EXPECT_EQ(without("/roles/1", "calls"), "[plan] roles[1].calls is missing");
  EXPECT_EQ(without("/roles/1", "seconds"), "[plan] roles[1].seconds is missing");
  EXPECT_EQ(without("/roles/1/more", "bubble"), "[plan] roles[1].more.bubble is missing");
  EXPECT_EQ(without("/roles/0/calls/1", "group"), "[plan] roles[0].calls[1].group is missing");
  EXPECT_EQ(without("/roles/0/calls/1", "calls"), "");
}

TEST(StoredJson, AloneHasListsOfStructs) {
  Roles list{roles()};
  const std::string refusal = "[config] a list of structs must be in JSON: got `roles`";
  EXPECT_EQ(test::thrown_message([&] { ConfigDocument::parse("roles = 1", "x.toml").read(list); }), refusal);
  EXPECT_EQ(test::thrown_message([&] { to_toml(list); }), refusal);
  EXPECT_EQ(test::thrown_message([&] { read_json(ordered_json::object(), list, "chat"); }),
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

TEST(StoredJson, ReadsNumbersThatStandForWords) {
  struct Shift {
    std::string shift = "auto";
    void fields(Fields& f) { f.number_or_word("shift", shift, {"auto"}, "", 0); }
  };
  for (const char* text : {"auto", "2", "0.25"})
    EXPECT_EQ(read_stored<Shift>(to_json_object(Shift{text}), "test").shift, text);
  EXPECT_EQ(read_stored<Shift>(nlohmann::json{{"shift", 1.5}}, "test").shift, "1.5");
  for (const char* text : {"-1", "2x", "", "inf", "nan"}) {
    try {
      read_stored<Shift>(nlohmann::json{{"shift", text}}, "test");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.message(), concat("shift must be one of auto, or a number: got \"", text, "\""));
    }
  }
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
