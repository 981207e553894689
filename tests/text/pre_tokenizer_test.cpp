// The splitting of texts by the pre_tokenizer section of a tokenizer.json, and the meaning of its regular expressions.
#include "colossal/text/tokenizers/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/tokenizers/regex.h"
#include "colossal/text/tokenizers/word_scanner.h"

namespace colossal::text::pre_tokenizer_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kMark = kMetaspace;

std::vector<std::string> cut(const json& section, const std::string& text, bool first = true,
                             Spelling spelling = Spelling::Alphabet) {
  Words words;
  PreTokenizer(section, spelling)(text, first, words);
  std::vector<std::string> list;
  for (const Word& word : words.list) list.emplace_back(word.text);
  return list;
}

json typed(const char* type, json options = json::object()) {
  options["type"] = type;
  return options;
}

json split(const char* regex, const char* behavior, bool invert = false) {
  return typed("Split", {{"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}});
}

TEST(PreTokenizer, SplitsLikeLlama3) {
  const json byte_level = typed("ByteLevel", {{"add_prefix_space", false}, {"use_regex", false}});
  const json section = typed("Sequence", {{"pretokenizers", {split(kLlama3Words, "Isolated"), byte_level}}});
  EXPECT_TRUE(PreTokenizer(section, Spelling::Bytes).scanner());
  const std::string text = "I'LL pay 12345 now!!\n\n  ok  ";
  const std::vector<std::string> wanted{"I", "'LL", " pay", " ", "123", "45", " now", "!!\n\n", " ", " ok", "  "};
  EXPECT_EQ(cut(section, text, true, Spelling::Bytes), wanted);
  std::vector<std::string> spelled = cut(section, text);
  for (std::string& word : spelled) word = from_byte_alphabet(word);
  EXPECT_EQ(spelled, wanted);
}

/// For every pattern that the scanner supports, its words equal PCRE2's matches, for all combinations of characters.
TEST(PreTokenizer, ScansLikeTheRegularExpressions) {
  const std::vector<const char*> patterns{kGpt2Words, kR50kWords, kCl100kWords, kLlama3Words, kQwen2Words};
  const std::vector<std::string> parts{"a",
                                       "Z",
                                       "\xC3\xA9",
                                       "\xE6\xBC\xA2",
                                       "1",
                                       "\xD9\xA3",
                                       "'",
                                       "s",
                                       "LL",
                                       "\xC5\xBF",
                                       " ",
                                       "\t",
                                       "\n",
                                       "\r",
                                       "\xC2\xA0",
                                       "\xC2\x85",
                                       ".",
                                       "\xCC\x81",
                                       "\xF0\x9F\xA6\x99",
                                       "-",
                                       "'ve",
                                       "\xE1\xA0\x8E"};
  unsigned state = 1;
  for (const char* pattern : patterns) {
    const auto scanner = WordScanner::of(pattern, Dialect::Rust);
    ASSERT_TRUE(scanner) << pattern;
    const Regex regex(pattern, Dialect::Rust);
    for (int i = 0; i < 4000; ++i) {
      std::string text;
      for (int n = 0; n < 12; ++n) text += parts[((state = state * 1664525 + 1013904223) >> 16) % parts.size()];
      size_t at = 0;
      for (const Regex::Match& match : regex.find_all(text)) {
        ASSERT_EQ(match.begin, at) << pattern << "\n" << text;
        at += scanner->first_word(std::string_view(text).substr(at));
        ASSERT_EQ(match.end, at) << pattern << "\n" << text;
      }
      ASSERT_EQ(at, text.size());
    }
  }
}

TEST(PreTokenizer, SplitsByEveryBehavior) {
  EXPECT_THAT(cut(split("[.]+", "Isolated"), "a..b.c"), ElementsAre("a", "..", "b", ".", "c"));
  EXPECT_THAT(cut(split("[.]", "Removed"), "a..b.c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(cut(split("[.]", "MergedWithPrevious"), "a..b.c"), ElementsAre("a.", ".", "b.", "c"));
  EXPECT_THAT(cut(split("[.]", "MergedWithNext"), "a..b.c"), ElementsAre("a", ".", ".b", ".c"));
  EXPECT_THAT(cut(split("[.]", "Contiguous"), "a..b.c"), ElementsAre("a", "..", "b", ".", "c"));
  EXPECT_THAT(cut(split("[a-z]+", "Removed", true), "a..bc.c"), ElementsAre("a", "bc", "c"));
  EXPECT_THAT(cut(split("[a-z]+", "MergedWithNext", true), "a..bc"), ElementsAre("a", "..bc"));
  EXPECT_THAT(cut(split("(?=[A-Z])", "Isolated"), "aBcDe"), ElementsAre("a", "Bc", "De")) << "of nothing, it cuts";
  EXPECT_THAT(cut(split(R"(\s+$)", "Removed"), "a  \nb "), ElementsAre("a", "\nb")) << "$ is the end of a line";
  EXPECT_THAT(cut(split(R"([^\S\n]+)", "Removed"), "a\xC2\x85\xE1\xA0\x8E b\nc"),
              ElementsAre("a", "\xE1\xA0\x8E", "b\nc"))
      << "U+0085 is white space, U+180E is none";
  EXPECT_THAT(cut(split(R"(\w+|\h)", "Isolated"), "a\xCC\x81_1-"), ElementsAre("a\xCC\x81_1", "-"));
}

TEST(PreTokenizer, SplitsByMetaspace) {
  EXPECT_THAT(cut(typed("Metaspace"), "a b  c"), ElementsAre(kMark + "a", kMark + "b", kMark, kMark + "c"));
  EXPECT_THAT(cut(typed("Metaspace", {{"prepend_scheme", "first"}}), "a b", false), ElementsAre("a", kMark + "b"));
  EXPECT_THAT(cut(typed("Metaspace", {{"prepend_scheme", "first"}}), "a"), ElementsAre(kMark + "a"));
  EXPECT_THAT(cut(typed("Metaspace", {{"prepend_scheme", "never"}}), "a"), ElementsAre("a"));
  EXPECT_THAT(cut(typed("Metaspace", {{"add_prefix_space", false}}), "a"), ElementsAre("a"));
  EXPECT_THAT(cut(typed("Metaspace", {{"split", false}, {"replacement", "_"}}), "a b"), ElementsAre("_a_b"));
  const json after =
      typed("Sequence",
            {{"pretokenizers",
              {typed("CharDelimiterSplit", {{"delimiter", "|"}}), typed("Metaspace", {{"prepend_scheme", "first"}})}}});
  EXPECT_THAT(cut(after, "a|b"), ElementsAre(kMark + "a", "b"));
  EXPECT_THAT(cut(after, "|b"), ElementsAre("b")) << "what starts behind a delimiter does not start the text";
}

TEST(PreTokenizer, SplitsByCharacterClasses) {
  EXPECT_THAT(cut(typed("Digits", {{"individual_digits", true}}), "a12b"), ElementsAre("a", "1", "2", "b"));
  EXPECT_THAT(cut(typed("Digits"), "a12b\xD9\xA3"), ElementsAre("a", "12", "b", "\xD9\xA3"));
  EXPECT_THAT(cut(typed("Whitespace"), "a_b, c!?"), ElementsAre("a_b", ",", "c", "!?"));
  EXPECT_THAT(cut(typed("WhitespaceSplit"), " a,\xE3\x80\x80 b "), ElementsAre("a,", "b"));
  EXPECT_THAT(cut(typed("BertPreTokenizer"), "a.b $c"), ElementsAre("a", ".", "b", "$", "c"));
  EXPECT_THAT(cut(typed("Punctuation"), "a..b"), ElementsAre("a", ".", ".", "b"));
  EXPECT_THAT(cut(typed("Punctuation", {{"behavior", "Contiguous"}}), "a..b"), ElementsAre("a", "..", "b"));
  EXPECT_THAT(cut(typed("FixedLength", {{"length", 2}}), "a\xC3\xA9z"), ElementsAre("a\xC3\xA9", "z"));
  EXPECT_THAT(cut(nullptr, "a b"), ElementsAre("a b"));
  EXPECT_THAT(cut(nullptr, ""), ElementsAre());
  EXPECT_THAT(cut(typed("ByteLevel"), "a"), ElementsAre(to_byte_alphabet(" a"))) << "a prefix space is the default";
}

TEST(PreTokenizer, AppliesLaterStepsToTheByteAlphabet) {
  // The third byte of U+2032 is spelled as U+00B2, which is a digit.
  const json steps = typed("Sequence", {{"pretokenizers",
                                         {typed("ByteLevel", {{"add_prefix_space", false}, {"use_regex", false}}),
                                          typed("Digits", {{"individual_digits", true}})}}});
  EXPECT_THAT(cut(steps, "\xE2\x80\xB2", true, Spelling::Bytes), ElementsAre("\xE2\x80", "\xB2"));
}

std::vector<std::string> found(const std::string& pattern, const std::string& text) {
  std::vector<std::string> parts;
  for (const Regex::Match& match : Regex(pattern).find_all(text))
    parts.push_back(text.substr(match.begin, match.end - match.begin));
  return parts;
}

/// BLOOM's pattern has brackets within brackets, which are a union.
TEST(Regex, ReadsNestedBracketsAsAUnion) {
  const std::string bloom = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+";
  EXPECT_THAT(found(bloom, "Hi, you(two|three) [ok]...\u3002x-y"),
              ElementsAre("Hi", " you", "two", "three", " [ok]", "x-y"));
  EXPECT_THAT(found("[a[b-d-]z]+", "a-bdcz e-"), ElementsAre("a-bdcz", "-"));
  EXPECT_THAT(found("[[\\d\\]]x]+", "1]x[y"), ElementsAre("1]x"));
  for (const char* pattern : {"[a[^b]]", "[a[b[c]]]", "[a-[bc]]", "[[a]-z]", "[a[]b]", "[a[b&&c]]", "[a[b"})
    EXPECT_THROW(Regex{pattern}, Error) << pattern;
}

TEST(Regex, FindsLongMatchesOfGroups) {
  const std::string word(300'000, 'a');
  EXPECT_THAT(found(R"((?:\p{L}\p{M}*)+)", word + " b"), ElementsAre(word, "b")) << "more than the machine's stack";
}

TEST(Regex, RefusesVerbsOfPcre2) {
  for (const char* pattern : {"(*NO_JIT)a", "a(*SKIP)b"})
    EXPECT_THAT([&] { Regex{pattern}; }, testing::ThrowsMessage<Error>(HasSubstr("a verb of PCRE2"))) << pattern;
  EXPECT_THAT(found("[(*]+", "a(*b"), ElementsAre("(*"));
}

TEST(Regex, SkipsBytesThatAreNotUtf8) {
  EXPECT_THAT(found("[^b]+", "a\xFF\xC3\xA9\xC3"), ElementsAre("a", "\xC3\xA9"));
  EXPECT_THAT(found("^a|a$",
                    "a\xFF"
                    "aa\xFF"
                    "a"),
              ElementsAre("a", "a"))
      << "what stands beside such a byte starts and ends no line";
  EXPECT_THAT(found("x*", "\xFF"), ElementsAre("", ""));
}

}  // namespace
}  // namespace colossal::text::pre_tokenizer_test
