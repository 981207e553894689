// Each metric on small cases, and the golden values of the harness (G64, G66, G67).
#include "colossal/evaluate/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "colossal/text/tokenizers/regex.h"
#include "colossal/text/verifiers/words.h"
#include "support/thrown_message.h"

namespace colossal::evaluate::metrics_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr char kUmlauts[] = "zw\xc3\xb6lf";

double value_of(const Values& values, const std::string& name) {
  for (const auto& [key, value] : values)
    if (key == name) return value;
  ADD_FAILURE() << name;
  return 0;
}

TEST(ChoiceMetrics, DivideByCharactersAndBytes) {
  // G64
  const std::vector<std::string> choices{"in the park", "m\xc3\xbcnchen", "a", "to sleep all day long"};
  const std::vector<double> sums{-11.3523502350, -80.2340469360, -4.0180263519, -22.5607929230};
  EXPECT_THAT(choice_metrics(sums, choices, 2), ElementsAre(Pair("acc", 1), Pair("acc_norm", 0), Pair("acc_bytes", 0)));
  EXPECT_THAT(choice_metrics(sums, choices, 0), ElementsAre(Pair("acc", 0), Pair("acc_norm", 1), Pair("acc_bytes", 1)));
  EXPECT_THAT(choice_metrics({-9.0, -10.4}, {kUmlauts, "twelve"}, 0),
              ElementsAre(Pair("acc", 1), Pair("acc_norm", 0), Pair("acc_bytes", 1)));
  EXPECT_THAT(choice_metrics({-9.0, -10.4}, {kUmlauts, "twelve"}, 1),
              ElementsAre(Pair("acc", 0), Pair("acc_norm", 1), Pair("acc_bytes", 0)));
}

TEST(ChoiceMetrics, TakeTheFirstOfEqualOnes) {
  EXPECT_EQ(value_of(choice_metrics({-2, -1, -1}, {"a", "b", "c"}, 1), "acc"), 1);
  EXPECT_EQ(value_of(choice_metrics({-2, -1, -1}, {"a", "b", "c"}, 2), "acc"), 0);
  EXPECT_EQ(value_of(choice_metrics({-2, -4}, {"a", "bb"}, 0), "acc_norm"), 1);
}

TEST(Perplexity, DividesSumsOverDocuments) {
  // G66
  Predicted predicted{-12.5, 4, 20};
  EXPECT_NEAR(value_of(predicted.values(), "word_perplexity"), 22.75989509353, 1e-11);
  EXPECT_NEAR(value_of(predicted.values(), "byte_perplexity"), 1.868245957432, 1e-12);
  EXPECT_NEAR(value_of(predicted.values(), "bits_per_byte"), 0.9016844005556, 1e-13);
  predicted.add({-3.5, 1, 4});
  EXPECT_NEAR(value_of(predicted.values(), "word_perplexity"), 24.53253019711, 1e-11);
}

TEST(Perplexity, CountsPartsBetweenWhiteSpace) {
  EXPECT_EQ(text::parts_of("Once upon a time, there was a little girl named Lily. She liked to play in the park."), 18);
  EXPECT_EQ(text::parts_of(" a \n b "), 4);  // as the harness counts
  EXPECT_EQ(text::parts_of(""), 1);
}

TEST(Means, HaveTheErrorOfTheSample) {
  const Mean mean = mean_of({1, 0, 0, 1, 1});
  EXPECT_DOUBLE_EQ(mean.mean, 0.6);
  EXPECT_NEAR(mean.error, 0.2449489742783, 1e-13);
  EXPECT_TRUE(std::isnan(mean_of({1}).error));
}

TEST(AnswerMetrics, MatchGsm8kAsTheHarnessDoes) {
  // G67: answer, gold, strict, flexible
  struct Row {
    const char *answer, *gold;
    double strict, flexible;
  };
  for (const Row& row :
       {Row{"7.\n#### 7", "7", 1, 1}, Row{"#### $1,250", "1250", 0, 1}, Row{"The answer is 18.", "18", 0, 1},
        Row{"it is -5", "-5", 0, 1}, Row{"#### 1,024.", "1024", 1, 1}, Row{"#### 3\n#### 4", "3", 1, 0},
        Row{"none", "3", 0, 0}, Row{"#### 12", "He has 3 * 4 = 12.\n#### 12", 1, 1}}) {
    EXPECT_EQ(answer_metric("strict", row.answer, row.gold), row.strict) << row.answer;
    EXPECT_EQ(answer_metric("flexible", row.answer, row.gold), row.flexible) << row.answer;
  }
}

TEST(AnswerMetrics, CompareTextsWithoutWhiteSpaceAtTheirEnds) {
  EXPECT_EQ(answer_metric("exact", " a b\n", "a b"), 1);
  EXPECT_EQ(answer_metric("exact", "a  b", "a b"), 0);
  EXPECT_EQ(answer_metric("exact", "\xe3\x80\x80z\xc2\xa0", "z"), 1);  // ideographic and no-break spaces
  EXPECT_EQ(answer_metric("exact", "A", "a"), 0);
}

TEST(AnswerMetrics, CompareNumbersByTheirValue) {
  struct Row {
    const char *answer, *target;
    double is_equal;
  };
  for (const Row& row :
       {Row{"so 1,250 apples", "1250.0", 1}, Row{"\\boxed{3} and 4", "3", 1}, Row{"\\boxed{\\frac{1}{2}} x", "2", 1},
        Row{"1 2 3.50", "3.5", 1}, Row{"-5", "5", 0}, Row{"3-5", "5", 1}, Row{"a -5.", "-5", 1}, Row{"1e3", "1000", 1},
        Row{".5", "0.50", 1}, Row{"0", "0.000", 1}, Row{"-0", "0", 1}, Row{"none", "none", 0}, Row{"1,2", "2", 1},
        Row{"9007199254740993", "9007199254740992", 0}, Row{"\\boxed{7", "7", 1}, Row{"12", "$12", 1}})
    EXPECT_EQ(answer_metric("number", row.answer, row.target), row.is_equal) << row.answer << " and " << row.target;
}

TEST(AnswerMetrics, TakeTheFirstMatchOfAPattern) {
  const text::Regex pattern(R"(answer is (?:\((\w)\)|(\d+)))", text::Dialect::Rust);
  EXPECT_EQ(answer_metric("regex", "The answer is (B), not: answer is (C)", "B", &pattern), 1);
  EXPECT_EQ(answer_metric("regex", "answer is 12", "12", &pattern), 1);
  EXPECT_EQ(answer_metric("regex", "no", "12", &pattern), 0);
  const text::Regex whole("[A-D]", text::Dialect::Rust);
  EXPECT_EQ(answer_metric("regex", "It is D", " D ", &whole), 1);
  EXPECT_THAT(test::thrown_message([] { answer_metric("regex", "", ""); }), HasSubstr("needs a `pattern`"));
}

TEST(AnswerMetrics, CountCommonWords) {
  EXPECT_EQ(answer_metric("f1", "The cat!", "cat"), 1);
  EXPECT_DOUBLE_EQ(answer_metric("f1", "a black cat sat", "the cat"), 2 * 1.0 / (3 + 1));
  EXPECT_DOUBLE_EQ(answer_metric("f1", "cat cat", "cat"), 2.0 / 3);
  EXPECT_EQ(answer_metric("f1", "the", "a"), 1);
  EXPECT_EQ(answer_metric("f1", "", "cat"), 0);
  // four Chinese characters and a full stop, of which the target has the first two
  EXPECT_DOUBLE_EQ(
      answer_metric("f1", "\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96\xe7\x95\x8c\xe3\x80\x82", "\xe4\xbd\xa0\xe5\xa5\xbd"),
      2 * 2.0 / (4 + 2));
}

TEST(AnswerMetrics, FindTheLongestCommonSubsequence) {
  EXPECT_DOUBLE_EQ(answer_metric("rouge", "police kill the gunman", "police killed the gunman"), 0.75);
  EXPECT_DOUBLE_EQ(answer_metric("rouge", "the gunman kill police", "police killed the gunman"), 0.5);
  EXPECT_DOUBLE_EQ(answer_metric("rouge", "The-Gunman", "the gunman"), 1);
  EXPECT_DOUBLE_EQ(answer_metric("rouge", "\xe4\xbd\xa0\xe4\xb8\x96\xe5\xa5\xbd", "\xe4\xbd\xa0\xe5\xa5\xbd"), 0.8);
  EXPECT_EQ(answer_metric("rouge", "", "x"), 0);
}

TEST(AnswerMetrics, RefuseAnotherName) {
  EXPECT_THAT(test::thrown_message([] { answer_metric("bleu", "", ""); }), HasSubstr("exact, number, strict"));
}

}  // namespace
}  // namespace colossal::evaluate::metrics_test
