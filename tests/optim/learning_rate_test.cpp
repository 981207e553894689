#include "colossal/optim/learning_rate.h"

#include <gtest/gtest.h>

#include "colossal/optim/optimizer.h"

namespace colossal::optim {
namespace {

OptimizerConfig config(const std::string& schedule) {
  OptimizerConfig c;
  c.learning_rate = 2;
  c.warmup_steps = 4;
  c.final_learning_rate = 0.25;
  c.schedule = schedule;
  return c;
}

TEST(LearningRate, WarmsUpLinearly) {
  EXPECT_DOUBLE_EQ(learning_rate(config("cosine"), 1, 20), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(config("cosine"), 4, 20), 2);
}

TEST(LearningRate, EndsWhereToldTo) {
  EXPECT_DOUBLE_EQ(learning_rate(config("cosine"), 20, 20), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(config("linear"), 20, 20), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(config("constant"), 20, 20), 2);
  EXPECT_DOUBLE_EQ(learning_rate(config("cosine"), 12, 20), 1.25);  // half way: the mean of peak and end
  EXPECT_DOUBLE_EQ(learning_rate(config("linear"), 8, 20), 1.625);
}

TEST(LearningRate, HasNoWarmUpWhereNoneIsAskedFor) {
  OptimizerConfig c = config("linear");
  c.warmup_steps = 0;
  EXPECT_LT(learning_rate(c, 1, 10), 2);
  EXPECT_GT(learning_rate(c, 1, 10), 1.8);
}

}  // namespace
}  // namespace colossal::optim
