#include "colossal/optim/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/optim/optimizer.h"
#include "support/thrown_message.h"

namespace colossal::optim::learning_rate_test {
namespace {

constexpr int64_t kBatch = 8;

OptimizerConfig config(const std::string& schedule) {
  OptimizerConfig c;
  c.learning_rate = 2;
  c.warmup_steps = 4;
  c.final_learning_rate = 0.25;
  c.schedule.name = schedule;
  return c;
}

double rate(const OptimizerConfig& c, int64_t step, int64_t steps = 20) {
  return learning_rate(c, step, steps, kBatch);
}
double rate(const std::string& schedule, int64_t step, int64_t steps = 20) {
  return rate(config(schedule), step, steps);
}

std::string refusal(const OptimizerConfig& c, int64_t steps = 20) {
  return test::thrown_message([&] { check_learning_rate(c, steps, kBatch); });
}

TEST(LearningRate, WarmsUpLinearlyToTheFirstRate) {
  for (const auto& [name, description] : learning_rate_schedules()) {
    const OptimizerConfig c = config(name);
    const double begin = rate(c, 4);
    EXPECT_DOUBLE_EQ(begin, c.schedule.name == "one-cycle" ? 2.0 / 25 : 2) << name;
    for (const int64_t step : {1, 2, 3}) EXPECT_DOUBLE_EQ(rate(c, step), begin * static_cast<double>(step) / 4) << name;
  }
}

TEST(LearningRate, FollowsTheClosedForms) {
  EXPECT_DOUBLE_EQ(rate("constant", 20), 2);
  EXPECT_DOUBLE_EQ(rate("linear", 8), 1.625);
  EXPECT_DOUBLE_EQ(rate("linear", 20), 0.5);
  EXPECT_DOUBLE_EQ(rate("cosine", 12), 1.25);  // half way: the mean of peak and end
  EXPECT_DOUBLE_EQ(rate("cosine", 8), 0.5 + 1.5 * (1 + std::cos(std::numbers::pi / 4)) / 2);
  EXPECT_DOUBLE_EQ(rate("cosine", 20), 0.5);
  EXPECT_DOUBLE_EQ(rate("polynomial", 8), 0.5 + 1.5 * 0.75 * 0.75);
  EXPECT_DOUBLE_EQ(rate("polynomial", 20), 0.5);
  EXPECT_DOUBLE_EQ(rate("inverse-square-root", 16), 1);
  EXPECT_DOUBLE_EQ(rate("inverse-square-root", 100, 100), 2 * std::sqrt(4.0 / 100));
}

TEST(LearningRate, AppliesThePolynomialPower) {
  OptimizerConfig c = config("polynomial");
  c.schedule.power = 3;
  EXPECT_DOUBLE_EQ(rate(c, 12), 0.5 + 1.5 / 8);
  c.schedule.power = 1;
  for (int64_t step = 1; step <= 20; ++step) EXPECT_DOUBLE_EQ(rate(c, step), rate("linear", step));
}

TEST(LearningRate, DropsAfterEachMilestone) {
  OptimizerConfig c = config("multi-step");
  c.schedule.milestones = {0.3, 0.5, 0.9};
  c.schedule.factor = 0.5;
  EXPECT_DOUBLE_EQ(rate(c, 6), 2);
  EXPECT_DOUBLE_EQ(rate(c, 7), 1);
  EXPECT_DOUBLE_EQ(rate(c, 10), 1);
  EXPECT_DOUBLE_EQ(rate(c, 11), 0.5);
  EXPECT_DOUBLE_EQ(rate(c, 20), 0.25);
}

TEST(LearningRate, RisesAndFallsAlongCosinesInOneCycle) {
  OptimizerConfig c = config("one-cycle");
  c.schedule.rise = 0.25;
  EXPECT_DOUBLE_EQ(rate(c, 6), 2 * (1 + 1.0 / 25) / 2);  // half way up
  EXPECT_DOUBLE_EQ(rate(c, 8), 2);
  EXPECT_DOUBLE_EQ(rate(c, 14), (2 + 0.5) / 2);  // half way down
  EXPECT_DOUBLE_EQ(rate(c, 20), 0.5);
}

TEST(LearningRate, DecaysOnlyAtTheEndInWarmupStableDecay) {
  OptimizerConfig c = config("warmup-stable-decay");
  for (int64_t step = 4; step <= 16; ++step) EXPECT_DOUBLE_EQ(rate(c, step), 2) << step;
  EXPECT_DOUBLE_EQ(rate(c, 18), (2 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(rate(c, 20), 0.5);
  c.schedule.decay = 0;
  EXPECT_DOUBLE_EQ(rate(c, 19), 2);
}

TEST(LearningRate, SkipsTheWarmUpOfZeroSteps) {
  OptimizerConfig c = config("linear");
  c.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(rate(c, 1, 10), 0.5 + 1.5 * 0.9);
  c.schedule.name = "inverse-square-root";
  EXPECT_DOUBLE_EQ(rate(c, 1), 2);
  EXPECT_DOUBLE_EQ(rate(c, 4), 1);
}

TEST(LearningRate, GrowsWithTheBatch) {
  OptimizerConfig c = config("constant");
  c.learning_rate_scaling = "linear";
  c.reference_batch = 2;
  EXPECT_DOUBLE_EQ(rate(c, 20), 8);
  c.learning_rate_scaling = "square-root";
  EXPECT_DOUBLE_EQ(rate(c, 20), 4);
  EXPECT_DOUBLE_EQ(rate(c, 1), 1);  // holds during the warm-up too
}

TEST(LearningRate, AcceptsTheDefaultsOfEverySchedule) {
  for (const auto& [name, description] : learning_rate_schedules()) EXPECT_EQ(refusal(config(name)), "") << name;
}

TEST(LearningRate, NamesTheNearestValidValues) {
  OptimizerConfig c = config("linear");
  EXPECT_EQ(refusal(c, 3), "[optimizer] warmup_steps must not exceed training.steps: got 4 of 3; at most 3");
  c = config("cosine");
  c.schedule.power = 3;
  EXPECT_EQ(refusal(c), "[optimizer] schedule cosine has no power: got 3.0; leave it out");
  c = config("multi-step");
  c.schedule.milestones = {0.75, 0.5};
  EXPECT_EQ(refusal(c), "[optimizer] schedule.milestones must rise: got [0.75, 0.5]; try [0.5, 0.75]");
  c.schedule.milestones = {0.1, 0.5};
  EXPECT_EQ(refusal(c),
            "[optimizer] schedule.milestones, fractions of training.steps, must be after the warm-up and before the "
            "end: got [0.1, 0.5]; from "
            "0.2 to less than 1");
  c = config("warmup-stable-decay");
  c.schedule.decay = 0.9;
  EXPECT_EQ(refusal(c),
            "[optimizer] the warm-up and schedule.decay must fit into the run: got 0.2 + 0.9 of training.steps; at "
            "most decay = 0.8");
  c = config("cosine");
  c.learning_rate_scaling = "linear";
  EXPECT_EQ(refusal(c),
            "[optimizer] learning_rate_scaling linear needs reference_batch, the batch_size for which learning_rate "
            "was tuned: got 0; 8 "
            "keeps the rate");
  c = config("cosine");
  c.reference_batch = 8;
  EXPECT_NE(refusal(c).find("reference_batch needs learning_rate_scaling: got 8; set"), std::string::npos);
}

TEST(LearningRate, ReadsTheScheduleAsTableOrName) {
  const auto read = [](const char* toml) {
    struct Sections {
      OptimizerConfig optimizer;
      void fields(Fields& f) { f.section("optimizer", optimizer, ""); }
    } sections;
    ConfigDocument::parse(toml, "test").read(sections);
    return sections.optimizer;
  };
  EXPECT_EQ(read("optimizer.schedule = 'constant'").schedule.name, "constant");
  const auto c = read("[optimizer]\nschedule = { name = 'multi-step', milestones = [0.25] }");
  EXPECT_EQ(c.schedule.name, "multi-step");
  EXPECT_EQ(c.schedule.milestones, std::vector<double>{0.25});
}

}  // namespace
}  // namespace colossal::optim::learning_rate_test
