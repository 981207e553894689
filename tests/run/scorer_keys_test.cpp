// The table [reward]: its keys, and which of them have an effect together.
#include "colossal/run/objectives/alignment/scorer_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/config.h"
#include "support/thrown_message.h"

namespace colossal::run::scorer_keys_test {
namespace {

using ::testing::HasSubstr;

std::string refusal(const RewardKeys& keys, bool has_function = false) {
  return test::thrown_message([&] { check_scorer_keys(keys, has_function); });
}

TEST(ScorerKeys, DescribeAllWaysToScore) {
  EXPECT_EQ(refusal({.verifiers = {"exact", "own"}, .weights = {1, -0.5}}), "");
  EXPECT_EQ(refusal({.verifiers = {"exact"}}), "");
  EXPECT_EQ(refusal({.command = {"x"}, .workers = 3, .timeout = 1, .retries = 0, .on_fault = "null"}), "");
  EXPECT_EQ(refusal({.from = "runs/reward", .from_weight = 0.5}), "");
  EXPECT_EQ(refusal({.from_weight = 0.5, .name = "gpt3-6.7b"}), "");
  EXPECT_EQ(refusal({}, true), "");
  EXPECT_EQ(refusal({.on_fault = "null"}, true), "");
}

TEST(ScorerKeys, NeedSomethingThatScores) {
  EXPECT_EQ(refusal({}),
            "[reward] answers must get a score: got no verifier, command, function or model; set reward.verifiers, "
            "reward.command or reward.from, or give colossal.train a function as `reward`");
}

TEST(ScorerKeys, NeedAWeightForEachVerifier) {
  EXPECT_EQ(refusal({.verifiers = {"exact", "tags"}, .weights = {1}}),
            "[reward] weights must have one number for each of reward.verifiers: got 1 for exact, tags; add or remove "
            "numbers, or leave reward.weights out");
}

TEST(ScorerKeys, RefuseTwoModels) {
  EXPECT_THAT(refusal({.from = "runs/reward", .name = "gpt3-6.7b"}), HasSubstr("from and name exclude each other"));
}

TEST(ScorerKeys, NeedEffects) {
  EXPECT_THAT(refusal({.weights = {1}, .command = {"x"}}), HasSubstr("[reward] weights needs reward.verifiers"));
  EXPECT_THAT(refusal({.verifiers = {"exact"}, .workers = 3}), HasSubstr("workers needs reward.command"));
  EXPECT_THAT(refusal({.verifiers = {"exact"}, .timeout = 3}), HasSubstr("timeout needs reward.command"));
  EXPECT_THAT(refusal({.verifiers = {"exact"}, .retries = 3}), HasSubstr("retries needs reward.command"));
  EXPECT_THAT(refusal({.timeout = 3}, true), HasSubstr("timeout needs reward.command"));
  EXPECT_THAT(refusal({.verifiers = {"exact"}, .on_fault = "null"}),
              HasSubstr("on_fault needs reward.command or a function that scores"));
  EXPECT_THAT(refusal({.verifiers = {"exact"}, .from_weight = 2}), HasSubstr("from_weight needs reward.from"));
}

TEST(ScorerKeys, HaveBounds) {
  const auto read = [](const char* flag) {
    return test::thrown_message([&] {
      RewardKeys keys;
      ConfigDocument document;
      document.set(flag);
      document.read(keys);
    });
  };
  EXPECT_THAT(read("timeout=0"), HasSubstr("timeout"));
  EXPECT_THAT(read("workers=0"), HasSubstr("workers"));
  EXPECT_THAT(read("retries=-1"), HasSubstr("retries"));
  EXPECT_THAT(read("on_fault=ignore"), HasSubstr("on_fault"));
  EXPECT_EQ(read("timeout=0.5"), "");
  EXPECT_EQ(read("command=python3,score.py"), "");
}

}  // namespace
}  // namespace colossal::run::scorer_keys_test
