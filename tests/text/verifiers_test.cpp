// The verifiers of the library: what each accepts, what it says, and what it refuses in a line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/text/verifiers/comparisons.h"
#include "colossal/text/verifiers/verifier.h"
#include "support/thrown_message.h"

namespace colossal::text::verifiers_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

PromptLine line_of(json members) { return {std::move(members), "prompts.jsonl, line 3"}; }

Verdict verdict(const std::string& verifier, const json& members, const std::string& answer, int64_t tokens = 0) {
  return built_in_verifiers().at(verifier).make()->verify(line_of(members), {answer, tokens});
}

double value(const std::string& verifier, const json& members, const std::string& answer, int64_t tokens = 0) {
  return verdict(verifier, members, answer, tokens).value;
}

std::string refusal(const std::string& verifier, const json& members) {
  return test::thrown_message([&] { built_in_verifiers().at(verifier).make()->check(line_of(members)); });
}

TEST(Verifiers, CompareWithTheAnswerOfTheLine) {
  EXPECT_EQ(value("exact", {{"answer", "11234569"}}, "11234569\n"), 1);
  EXPECT_EQ(value("exact", {{"answer", "11234569"}}, "1123456"), 0);
  EXPECT_EQ(value("exact", {{"answer", 42}}, " 42"), 1);
  EXPECT_EQ(value("number", {{"answer", "1250.0"}}, "It costs 1,250."), 1);
  EXPECT_EQ(value("number", {{"answer", "3"}}, "\\boxed{3} of 4"), 1);
  EXPECT_EQ(value("number", {{"answer", 3.5}}, "3 or 3.50"), 1);
  EXPECT_EQ(value("strict", {{"answer", "18"}}, "so\n#### 18"), 1);
  EXPECT_EQ(value("flexible", {{"answer", "18"}}, "The answer is 18."), 1);
  EXPECT_DOUBLE_EQ(value("f1", {{"answer", "the cat"}}, "a black cat sat"), 0.5);
  EXPECT_DOUBLE_EQ(value("rouge", {{"answer", "police killed the gunman"}}, "police kill the gunman"), 0.75);
}

TEST(Verifiers, TakeTheBestOfSeveralAnswers) {
  const json members{{"answer", {"two", 2}}};
  EXPECT_EQ(value("exact", members, "2"), 1);
  EXPECT_EQ(value("exact", members, "two"), 1);
  EXPECT_EQ(value("exact", members, "3"), 0);
}

// Tasks of evaluate and verifiers have one function for each of these names.
TEST(Verifiers, ShareFunctionsWithTheMetricsOfTasks) {
  for (const Comparison& comparison : comparisons())
    for (const auto& [answer, target] : {std::pair("#### 7", "7"), std::pair("7.0", "7"), std::pair("a b", "b")})
      EXPECT_EQ(value(comparison.name, {{"answer", target}}, answer), comparison.value(answer, target));
}

TEST(Verifiers, FindThePatternOfTheLine) {
  EXPECT_EQ(value("regex", {{"pattern", "^[0-9]{2}$"}}, "42"), 1);
  EXPECT_EQ(value("regex", {{"pattern", "^[0-9]{2}$"}}, "a\n42"), 0) << "^ is the start of the text, not of a line";
  EXPECT_EQ(value("regex", {{"pattern", "b"}},
                  "a\xff"
                  "b"),
            1)
      << "behind bytes that are not UTF-8";
  EXPECT_EQ(value("regex", {{"pattern", ""}}, ""), 1);
}

// It would take longer than the universe exists.
TEST(Verifiers, LimitTheWorkOfAPattern) {
  const Verdict endless = verdict("regex", {{"pattern", "^(a+)+$"}}, std::string(60, 'a') + "b");
  EXPECT_EQ(endless.value, 0);
  EXPECT_EQ(endless.text, "the regular expression failed: match limit exceeded");
}

TEST(Verifiers, ParseJson) {
  EXPECT_EQ(value("json", json::object(), " {\"a\": [1, null]}\n"), 1);
  EXPECT_EQ(value("json", {{"schema", nullptr}}, "3"), 1);
  const Verdict wrong = verdict("json", json::object(), "{\"a\": }");
  EXPECT_EQ(wrong.value, 0);
  EXPECT_THAT(wrong.text, StartsWith("the answer: not valid JSON"));
  EXPECT_THAT(verdict("json", json::object(), std::string(101, '[') + std::string(101, ']')).text,
              HasSubstr("nested too deeply"));
  EXPECT_EQ(value("json", json::object(), std::string(100000, '[')), 0);
  EXPECT_EQ(value("json", json::object(), ""), 0);
}

TEST(Verifiers, ValidateJson) {
  const json schema{{"type", "object"}, {"required", {"age"}}, {"properties", {{"age", {{"type", "integer"}}}}}};
  for (const json& members : {json{{"schema", schema}}, json{{"schema", schema.dump()}}}) {
    EXPECT_EQ(value("json", members, R"({"age": 3})"), 1);
    EXPECT_THAT(verdict("json", members, R"({"age": "3"})").text, HasSubstr("[age]"));
    EXPECT_THAT(verdict("json", members, "{}").text, HasSubstr("age"));
  }
}

TEST(Verifiers, WantTagsOnceAndInOrder) {
  EXPECT_EQ(value("tags", json::object(), "<think>x</think> so <answer>7</answer>"), 1);
  EXPECT_EQ(verdict("tags", json::object(), "<think>x <answer>7</answer>").text, "</think> is missing");
  EXPECT_EQ(verdict("tags", json::object(), "<think></think><answer></answer><answer></answer>").text,
            "<answer> occurs twice");
  EXPECT_EQ(verdict("tags", json::object(), "<answer>7</answer><think>x</think>").text, "<answer> stands too early");
  EXPECT_EQ(value("tags", json::object(), "<think>x<answer></think></answer>"), 0);
}

TEST(Verifiers, LimitTheLength) {
  EXPECT_EQ(value("length", {{"max_tokens", 5}}, "any", 5), 1);
  const Verdict longer = verdict("length", {{"max_tokens", 5}}, "any", 6);
  EXPECT_EQ(longer.value, 0);
  EXPECT_EQ(longer.text, "6 tokens, at most 5");
}

TEST(Verifiers, NameWhatALineLacks) {
  EXPECT_EQ(refusal("exact", json::object()),
            "[verifier] exact reads `answer` of each line, which must be there: got none in prompts.jsonl, line 3; "
            "correct the line, or leave exact out of the verifiers");
  EXPECT_THAT(refusal("number", {{"answer", nullptr}}), HasSubstr("a text, a number or a list of them: got null"));
  EXPECT_THAT(refusal("f1", {{"answer", {"a", true}}}), HasSubstr("got [\"a\",true]"));
  EXPECT_THAT(refusal("rouge", {{"answer", json::array()}}), HasSubstr("got []"));
  EXPECT_THAT(refusal("regex", json::object()), HasSubstr("regex reads `pattern` of each line, which must be there"));
  EXPECT_THAT(refusal("regex", {{"pattern", 3}}), HasSubstr("which must be a text: got 3"));
  EXPECT_THAT(refusal("regex", {{"pattern", "(a"}}),
              AllOf(HasSubstr("must be a regular expression: got bad regular expression (a at 2"),
                    HasSubstr("in prompts.jsonl, line 3")));
  EXPECT_THAT(refusal("json", {{"schema", 3}}), HasSubstr("a schema must be a JSON object, true or false: got 3"));
  EXPECT_THAT(refusal("json", {{"schema", "{"}}), HasSubstr("the schema: not valid JSON"));
  EXPECT_THAT(refusal("length", {{"max_tokens", -1}}), HasSubstr("a whole number of at least 0: got -1"));
  EXPECT_EQ(refusal("tags", json::object()), "");
  EXPECT_EQ(refusal("json", json::object()), "");
}

TEST(Verifiers, NameTheNearest) {
  EXPECT_THAT(test::thrown_message([] { built_in_verifiers().at("exakt"); }),
              StartsWith("[verifier] unknown verifier exakt, did you mean `exact`?; the verifiers are exact, number"));
}

TEST(Verifiers, JoinThoseOfAProgram) {
  class Short final : public Verifier {
    void check(const PromptLine&) override {}
    Verdict verify(const PromptLine&, const Completion& completion) override {
      return {.value = completion.text.size() < 5 ? 1.0 : 0.0};
    }
  };
  Verifiers verifiers = built_in_verifiers();
  verifiers.add({.name = "short", .make = [] { return std::make_unique<Short>(); }});
  EXPECT_EQ(verifiers.at("short").make()->verify(line_of(json::object()), {"yes"}).value, 1);
  EXPECT_EQ(test::thrown_message([&] { verifiers.add({"short", [] { return std::make_unique<Short>(); }}); }),
            "[verifier] the name of a verifier must be new: short is registered already; choose another name");
  EXPECT_EQ(test::thrown_message([&] { verifiers.add({.name = "long"}); }),
            "[verifier] a verifier must have a name and a make: got long");
}

}  // namespace
}  // namespace colossal::text::verifiers_test
