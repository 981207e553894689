// Patterns of tokenizers as Oniguruma reads them. The expected values are the output of the package `tokenizers`
// 0.23.3.
#include "colossal/text/tokenizers/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/gguf_words.h"
#include "colossal/text/tokenizers/pre_tokenizer.h"
#include "colossal/text/tokenizers/word_scanner.h"

namespace colossal::text::regex_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Returns the matches, separated by bars.
std::string found(const std::string& pattern, const std::string& text, Dialect dialect = Dialect::Oniguruma) {
  std::string list;
  for (const Regex::Match& match : Regex(pattern, dialect).find_all(text))
    list += (list.empty() ? "" : "|") + text.substr(match.begin, match.end - match.begin);
  return list;
}

/// Returns the words of a pre_tokenizer, separated by bars.
std::string words_of(const json& section, const std::string& text, bool spelled) {
  Words words;
  PreTokenizer(section, Spelling::Alphabet)(text, true, words);
  std::string list;
  for (const Word& word : words.list) {
    const std::string_view between = list.empty() ? "" : "|";
    list.append(between).append(spelled ? from_byte_alphabet(word.text) : std::string(word.text));
  }
  return list;
}

json split(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
}

TEST(Regex, SplitsWordsOfEveryGgufFile) {
  const std::string text =
      "I'LL pay $12345.67 (now)!!\n\n"
      "  caf\u00e9\u0301s <=> \u4f60\u597d\u3002\u0661\u0662 isn't  ";
  struct Row {
    std::vector<const char*> names;
    const char* words;
  };
  const std::vector<Row> rows{
      {{"gpt-2"},
       "I|'|LL| pay| $|12345|.|67| (|now|)!!|\n\n "
       "| caf\u00e9|\u0301|s| <=>| \u4f60\u597d|\u3002|\u0661\u0662| isn|'t|  "},
      {{"llama-bpe", "dbrx", "glm4"},
       "I|'LL| pay| $|123|45|.|67| (|now|)!!\n\n| "
       "| caf\u00e9|\u0301s| <=>| \u4f60\u597d|\u3002|\u0661\u0662| isn|'t|  "},
      {{"qwen2"},
       "I|'LL| pay| $|1|2|3|4|5|.|6|7| (|now|)!!\n\n| "
       "| caf\u00e9|\u0301s| <=>| \u4f60\u597d|\u3002|\u0661|\u0662| isn|'t|  "},
      {{"starcoder"},
       "I|'|LL| pay| $|1|2|3|4|5|.|6|7| (|now|)!!|\n\n "
       "| caf\u00e9|\u0301|s| <=>| \u4f60\u597d|\u3002|\u0661|\u0662| isn|'t|  "},
      {{"gpt-4o"},
       "I'LL| pay| $|123|45|.|67| (|now|)!!\n\n| "
       "| caf\u00e9\u0301s| <=>| \u4f60\u597d|\u3002|\u0661\u0662| isn't|  "},
      {{"tekken"},
       "I|'LL| pay| $|1|2|3|4|5|.|6|7| (|now|)!!\n\n| "
       "| caf\u00e9\u0301s| <=>| \u4f60\u597d|\u3002|\u0661|\u0662| isn|'t|  "},
      {{"falcon", "default"},
       "I|'|LL| pay| |$|123|45|.|67| |(|now|)!!|\n\n "
       "| caf\u00e9|\u0301|s| |<=>| \u4f60\u597d|\u3002|\u0661\u0662| isn|'|t|  "},
      {{"bloom"},
       "I'LL| pay| $12345|.|67| (|now|)!!\n\n "
       "| caf\u00e9\u0301s| <=>| \u4f60\u597d|\u3002|\u0661\u0662| isn't|  "},
      {{"viking"},
       "I'LL| pay| $|1|2|3|4|5|.|6|7| (|now|)!!\n\n "
       "| caf\u00e9\u0301s| <=>| \u4f60\u597d|\u3002|\u0661|\u0662| isn't|  "},
  };
  for (const auto& [names, words] : rows)
    for (const char* name : names)
      EXPECT_EQ(words_of(pre_tokenizer_of(gguf_words(name, "x.gguf")), text, true), words) << name;
}

TEST(Regex, SplitsWordsOfDeepSeekCoder) {
  const json section{{"type", "Sequence"},
                     {"pretokenizers",
                      {split("[\r\n]"),
                       split("\\s?\\p{L}+"),
                       split("\\s?\\p{P}+"),
                       split("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
                       {{"type", "Digits"}, {"individual_digits", true}}}}};
  EXPECT_EQ(words_of(section, "def f(x):\n  return x_1+42  # \u4f60\u597d", false),
            "def| f|(|x|):|\n| | return| x|_|1|+|4|2| | #| |\u4f60\u597d");
}

TEST(Regex, ReadsQuantifiersAfterClasses) {
  EXPECT_EQ(found("\\p{L}+", "ab1c"), "ab|c");
  EXPECT_EQ(found("\\P{L}+|x{2}", "ab12c"), "12");
  EXPECT_EQ(found("[\\p{L}]+\\x{31}+", "ab11c"), "ab11");
  EXPECT_EQ(found("a{,2}b", "aaab"), "aab");
  EXPECT_EQ(found("{a}", "{a}"), "{a}");
}

TEST(Regex, ReadsNestedQuantifiers) {
  EXPECT_EQ(found("\\d{1,3}+", "1234567"), "1234567");
  EXPECT_EQ(found("(?:ab){2}+c", "ababababc"), "ababababc");
  EXPECT_EQ(found("x(a|\\x62){2}?c", "xabc xc xac"), "xabc|xc");
  EXPECT_THROW(Regex("a{2}++"), Error);
  EXPECT_EQ(found("\\d{1,3}+", "1234567", Dialect::Rust), "123|456|7") << "possessive";
}

/// The pattern of cl100k_base splits differently in a tokenizer.json than in tiktoken.
TEST(Regex, SplitsDigitsByDialect) {
  EXPECT_EQ(words_of(split(kCl100kWords), "abc 1234567  \nx  ", false), "abc| |1234567|  \n|x|  ");
  EXPECT_EQ(found(kCl100kWords, "abc 1234567", Dialect::Rust), "abc| |123|456|7");
}

TEST(Regex, ReadsEscapedLetters) {
  EXPECT_EQ(found("\\pL+", "Lop pL pLL"), "pL|pLL") << "no class without braces";
  EXPECT_EQ(found("[\\pL]+", "Lop"), "L|p");
  EXPECT_EQ(found("\\pL+", "Lop 1", Dialect::Rust), "Lop");
  EXPECT_EQ(found("\\v", "a\v\n\u2028"), "\v") << "the vertical tab alone";
  EXPECT_EQ(found("\\Qa+\\E", "Qaa+E QaaE"), "QaaE") << "no quotation";
}

TEST(Regex, MatchesCharacterClasses) {
  EXPECT_EQ(found("\\w", "\u00b2\u00bc-"), "\u00b2|\u00bc");
  EXPECT_EQ(found("[\\w]", "\u00b2\u00bc-a"), "a") << "no numbers of Latin-1 within brackets";
  EXPECT_EQ(found("\\w", "\u00b2\u200da", Dialect::Rust), "\u200d|a");
  EXPECT_EQ(found("[[:word:]]+", "a\u0301_1\u00b2"), "a\u0301_1");
  EXPECT_EQ(found("[[:punct:]]+", "a$\u20ac\u00a2.b"), "$\u20ac\u00a2.");
  EXPECT_EQ(found("[[:alpha:]]+", "a1\u24d0"), "a|\u24d0");
  EXPECT_EQ(found("[[:space:]]+", "\u180e \t"), " \t");
  for (const char* pattern : {"[[:upper:]]", "[[:^alnum:]]", "[[:none:]]"})
    EXPECT_THAT([&] { Regex{pattern}; }, ThrowsMessage<Error>(HasSubstr("class [:...:]"))) << pattern;
}

TEST(Regex, RefusesFlagsWithinAlternatives) {
  EXPECT_EQ(found("(?i)'s|x", "'S X"), "'S|X");
  EXPECT_EQ(found("a|(?i)b|c", "A B C"), "B|C");
  EXPECT_EQ(found("a(?i:b)|c", "aB C"), "aB");
  EXPECT_EQ(found("(?=(?i)a).|(?<n>(?i)b)", "A B"), "A|B");
  for (const char* pattern : {"a(?i)b|c", "(?:x(?i)b|c)", "(?i)a(?-i)b"})
    EXPECT_THAT([&] { Regex{pattern}; }, ThrowsMessage<Error>(HasSubstr("write (?i:...)"))) << pattern;
}

}  // namespace
}  // namespace colossal::text::regex_test
