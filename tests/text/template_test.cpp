// Templates over the members of a line: text, values, and what fails.
#include "colossal/text/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/text/tokenizers/regex.h"
#include "support/thrown_message.h"

namespace colossal::text::template_test {
namespace {

using nlohmann::ordered_json;
using ::testing::HasSubstr;

const ordered_json kLine = {{"q", " Why? "}, {"choices", {"a", "b"}}, {"label", 1}};

TEST(Template, RendersMembersAndKeepsTheLastLineEnd) {
  EXPECT_EQ(Template("Question: {{q.strip()}}\n\n", "t").render(kLine), "Question: Why?\n\n");
  EXPECT_EQ(Template("{{label}}\n", "t").render(kLine), "1\n");
  EXPECT_EQ(Template("", "t").render(kLine), "");
}

TEST(Template, YieldsTheValueOfOneExpressionAlone) {
  EXPECT_EQ(Template("{{choices}}", "t").value(kLine), ordered_json({"a", "b"}));
  EXPECT_EQ(Template("{{ choices|map('upper') }}", "t").value(kLine), ordered_json({"A", "B"}));
  EXPECT_EQ(Template("{{label}}", "t").value(kLine), ordered_json(1));
  EXPECT_EQ(Template("{{label}} ", "t").value(kLine), ordered_json("1 "));
  EXPECT_EQ(Template("{{label}}{{label}}", "t").value(kLine), ordered_json("11"));
  EXPECT_EQ(Template("", "t").value(kLine), ordered_json(""));
}

TEST(Template, RefusesMissingMembers) {
  const auto message = [](const char* source) {
    return test::thrown_message([&] { Template(source, "mine.toml, prompt").value(kLine); });
  };
  EXPECT_THAT(message("a\n{{z}} b"), HasSubstr("mine.toml, prompt, line 2: UndefinedError: 'z' is undefined"));
  EXPECT_THAT(message("{{z}}"), HasSubstr("line 1: UndefinedError: 'z' is undefined"));
  EXPECT_THAT(message("{% for x in z %}{% endfor %}"), HasSubstr("'z' is undefined"));
  EXPECT_THAT(message("{% if z %}{% endif %}"), HasSubstr("'z' is undefined"));
  EXPECT_EQ(message("{% if z is defined %}{% endif %}"), "");
  EXPECT_THAT(message("{{"), HasSubstr("mine.toml, prompt, line 1: TemplateSyntaxError"));
  EXPECT_THAT(message("{{range}}"), HasSubstr("TypeError"));
  EXPECT_THAT(message("{{1e999}}"), HasSubstr("ValueError: a value"));
  EXPECT_THAT(message("\xff"), HasSubstr("must be UTF-8"));
}

TEST(Template, ReplacesMatchesOfARegularExpression) {
  const ordered_json line = {{"t", "a [b] [c [d] e] f"}};
  const auto rendered = [&](const char* source) { return Template(source, "t").render(line); };
  EXPECT_EQ(rendered(R"x({{ t|regex_replace("\\[.*?\\]", "") }})x"), "a   e] f");
  EXPECT_EQ(rendered(R"x({{ [t]|map("regex_replace", "[a-z]", "x")|first }})x"), "x [x] [x [x] x] x");
  EXPECT_THAT(test::thrown_message([&] { rendered(R"x({{ t|regex_replace("(", "") }})x"); }),
              HasSubstr("bad regular expression"));
  EXPECT_THAT(test::thrown_message([&] { rendered(R"x({{ t|regex_replace("(a)", "\\1") }})x"); }),
              HasSubstr("got a backslash"));
}

TEST(Regex, FindsTheGroupsOfTheFirstMatch) {
  const std::string text = "x = 12, y = 3";
  const std::vector<Regex::Match> found = Regex(R"(= (\d+)(z)?)", Dialect::Rust).find_groups(text);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(text.substr(found[0].begin, found[0].end - found[0].begin), "= 12");
  EXPECT_EQ(text.substr(found[1].begin, found[1].end - found[1].begin), "12");
  EXPECT_EQ(found[2].begin, found[2].end);
  EXPECT_TRUE(Regex("q").find_groups(text).empty());
}

}  // namespace
}  // namespace colossal::text::template_test
