#include "colossal/base/json_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "support/temporary_folder.h"

namespace colossal::json_file_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  try {
    return "read: " + parse_json_object(text, "x.json", "test", limits).dump();
  } catch (const Error& error) {
    return error.what();
  }
}

std::string nested(int levels, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < levels; ++i) text += open;
  text += "1";
  for (int i = 0; i < levels; ++i) text += close;
  return text;
}

TEST(JsonFile, ReadsAnObject) {
  const test::TemporaryFolder folder;
  write_file(folder / "x.json", R"({"a": [1, 2.5, "\u00e9"], "b": {}})");
  EXPECT_EQ(read_json_object(folder / "x.json", "test"),
            (nlohmann::json{{"a", {1, 2.5, "\xC3\xA9"}}, {"b", nlohmann::json::object()}}));
  EXPECT_THROW(read_json_object(folder / "none.json", "test"), Error);
  EXPECT_THROW(read_json_object(folder / "x.json", "test", {.bytes = 10}), Error);
  ASSERT_EQ(mkfifo((folder / "pipe.json").c_str(), 0600), 0);
  EXPECT_THROW(read_json_object(folder / "pipe.json", "test"), Error);
}

TEST(JsonFile, RefusesOtherThanObjects) {
  EXPECT_EQ(refusal("[]"), "[test] x.json: must be a JSON object");
  EXPECT_EQ(refusal("null"), "[test] x.json: must be a JSON object");
  for (const char* text :
       {"", "{", "{}x", "{\"a\": 1e999}", "{\"\xff\": 1}", "{\"a\": \"\\ud800\"}", "{'a': 1}", "{\"a\": NaN}"})
    EXPECT_THAT(refusal(text), StartsWith("[test] x.json: not valid JSON: ")) << text;
}

TEST(JsonFile, NamesThePlaceOfBytesThatAreNotUtf8) {
  EXPECT_EQ(refusal("{\"a\":\n \"caf\xe9\"}"),
            "[test] x.json: not valid JSON: near line 2, column 7: a byte that is not UTF-8; convert the text, for "
            "instance with iconv -f LATIN1 -t UTF-8");
}

TEST(JsonFile, PrintsShortPrintableMessages) {
  const std::string message = refusal("{\"a\": \"" + std::string(1'000'000, '\x1b') + "\"}");
  EXPECT_THAT(message, StartsWith("[test] x.json: not valid JSON: parse error at line 1"));
  EXPECT_LT(message.size(), 300u);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  const std::string repeated = refusal("{\"\x7f\": 1, \"\x7f\": 2}", {.distinct_names = true});
  EXPECT_EQ(repeated, "[test] x.json: two members are named ?");
}

TEST(JsonFile, LimitsTheDepth) {
  EXPECT_THAT(refusal("{\"a\": " + nested(99, "[", "]") + "}"), StartsWith("read: "));
  for (const int levels : {100, 1'000'000}) {
    EXPECT_EQ(refusal("{\"a\": " + nested(levels, "[", "]") + "}"),
              "[test] x.json: nested too deeply, more than 100 levels");
    EXPECT_EQ(refusal(nested(levels + 1, "{\"a\": ", "}")), "[test] x.json: nested too deeply, more than 100 levels");
    EXPECT_EQ(refusal(std::string(levels + 1, '[')), "[test] x.json: nested too deeply, more than 100 levels");
  }
  EXPECT_THAT(refusal(nested(100, "{\"a\": ", "}")), StartsWith("read: "));
  EXPECT_THAT(refusal(R"({"a": {"b": 1}})", {.depth = 2}), StartsWith("read: "));
  EXPECT_THAT(refusal(R"({"a": {"b": []}})", {.depth = 2}), HasSubstr("more than 2 levels"));
}

TEST(JsonFile, LimitsTheMembersOfOneObject) {
  EXPECT_THAT(refusal(R"({"a": {"b": 1, "c": 2}, "d": [{"b": 1, "c": 2}]})", {.members = 2}), StartsWith("read: "));
  EXPECT_EQ(refusal(R"({"a": [{"b": 1, "c": 2, "b": 3}]})", {.members = 2}),
            "[test] x.json: an object has more than 2 members");
}

TEST(JsonFile, ParsesAnyValueWithinTheDepth) {
  EXPECT_EQ(parse_json("[1, null]", "x", "test"), (nlohmann::json{1, nullptr}));
  EXPECT_EQ(parse_ordered_json(R"({"b": 1, "a": 2})", "x", "test").dump(), R"({"b":1,"a":2})");
  const std::string deep = nested(100000, "[", "]");
  EXPECT_THROW(parse_json(deep, "x", "test"), Error);
  EXPECT_THROW(parse_ordered_json(deep, "x", "test"), Error);
  EXPECT_THROW(parse_json("[1", "x", "test"), Error);
  EXPECT_THROW(parse_ordered_json("", "x", "test"), Error);
}

TEST(JsonFile, KeepsTheSpellingOfFloats) {
  std::vector<std::string> floats;
  parse_ordered_json("[12345678901234567890123, {\"a\": 1.50, \"b\": 7}, -1e2]", "x", "test", {}, &floats);
  EXPECT_EQ(floats, (std::vector<std::string>{"12345678901234567890123", "1.50", "-1e2"}));
}

// The time of a former parser grew with the square of the number of members: an hour for this object.
TEST(JsonFile, ReadsEachOfManyMembersOnce) {
  nlohmann::json header;
  for (int i = 0; i < 500'000; ++i) header[std::to_string(i)] = nlohmann::json::object();
  const std::string text = header.dump();
  EXPECT_EQ(parse_json_object(text, "x.json", "test", {.distinct_names = true}), header);
}

TEST(JsonFile, RefusesRepeatedNamesOnRequest) {
  const JsonLimits distinct{.distinct_names = true};
  EXPECT_THAT(refusal(R"({"a": 1, "a": 2})"), StartsWith("read: "));
  EXPECT_EQ(refusal(R"({"a": 1, "b": {"a": 1}, "c": [{"a": 1}, {"a": 2}]})", distinct),
            R"(read: {"a":1,"b":{"a":1},"c":[{"a":1},{"a":2}]})");
  EXPECT_EQ(refusal(R"({"a": 1, "b": {"a": 1}, "a": 2})", distinct), "[test] x.json: two members are named a");
  EXPECT_EQ(refusal(R"({"x": {"b": 1, "b": 1}})", distinct), "[test] x.json: two members are named b");
}

}  // namespace
}  // namespace colossal::json_file_test
