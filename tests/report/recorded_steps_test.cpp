#include "colossal/report/recorded_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace colossal::report::recorded_steps_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names_of(const RecordedSteps& steps) {
  std::vector<std::string> names;
  for (const MetricColumn& column : steps.columns()) names.push_back(column.name);
  return names;
}

TEST(RecordedSteps, KeepsAColumnForEachName) {
  RecordedSteps steps;
  steps.add(1, {{"loss", 5.5}, {"eval_loss", 5.6}});
  steps.add(3, {{"loss", 5.4}});
  steps.add(4, {{"b", 1}, {"loss", 5.3}, {"a", 2}, {"b", 3}});
  EXPECT_THAT(steps.numbers(), ElementsAre(1, 3, 4));
  EXPECT_THAT(names_of(steps), ElementsAre("loss", "eval_loss", "b", "a"));
  EXPECT_EQ(steps.value("eval_loss", 0), 5.6);
  EXPECT_FALSE(steps.value("eval_loss", 1));
  EXPECT_FALSE(steps.value("nothing", 0));
  EXPECT_EQ(steps.value("b", 2), 3) << "the last value of a name counts";
  EXPECT_THAT(steps.values("eval_loss", -1), ElementsAre(5.6, -1, -1));
  EXPECT_THAT(steps.values("nothing", 7), ElementsAre(7, 7, 7));
}

TEST(RecordedSteps, DropsTheValuesOfRemovedSteps) {
  RecordedSteps steps;
  steps.add(1, {{"loss", 1}});
  steps.add(2, {{"loss", 2}, {"eval_loss", 2}});
  steps.remove_last();
  EXPECT_EQ(steps.size(), 1u);
  EXPECT_TRUE(steps.find("eval_loss")->values.empty());
  steps.add(2, {{"loss", 3}});
  EXPECT_THAT(steps.find("loss")->values, ElementsAre(1, 3));
}

TEST(RecordedSteps, LimitsTheNumberOfNames) {
  RecordedSteps::Values values;
  for (size_t i = 0; i < RecordedSteps::kMaxNames + 5; ++i) values.emplace_back("m" + std::to_string(i), 1);
  RecordedSteps steps;
  steps.add(1, values);
  EXPECT_EQ(steps.columns().size(), RecordedSteps::kMaxNames);
  EXPECT_EQ(steps.value("m9999", 0), 1);
  EXPECT_FALSE(steps.value("m10000", 0));
}

}  // namespace
}  // namespace colossal::report::recorded_steps_test
