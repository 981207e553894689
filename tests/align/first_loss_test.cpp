// What rounding may change of the first loss of preference training.
#include "colossal/align/first_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "colossal/models/shape_parts.h"

namespace colossal::align::first_loss_test {
namespace {

TEST(FirstLoss, AllowsWhatRoundingExplains) {
  run::AlignmentKeys keys;
  keys.method = "dpo";
  const double error = 0.001, tokens = 400;
  // The slope of the hinge is beta, and that of the others is less: 0.1 * 2 * 0.001 * 20.
  EXPECT_NEAR(first_loss_slack(keys, error, tokens), 0.004, 1e-3);
  keys.beta = 0.2;
  EXPECT_NEAR(first_loss_slack(keys, error, tokens), 0.008, 1e-3);
  keys.method = "ipo";  // (h - 1 / (2 beta))^2 - 1 / (4 beta^2) at h = 0.04
  const double moved = std::pow(-0.04 - 2.5, 2) - 6.25;
  keys.loss = "sum";
  EXPECT_NEAR(first_loss_slack(keys, error, tokens), moved, 1e-3);
  keys.loss = "mean";
  EXPECT_LT(first_loss_slack(keys, error, tokens), moved / 10) << "of a mean over 400 tokens";
  keys.method = "kto";
  keys.undesirable_weight = 3;
  EXPECT_NEAR(first_loss_slack(keys, error, tokens), 0.024, 1e-3);
}

TEST(FirstLoss, AllowsMoreForFewerBitsAndForExperts) {
  models::ModelShape shape;
  EXPECT_LT(token_error("fp64", shape), 1e-13);
  double before = 0;
  for (const char* mode : {"fp64", "fp32", "fp16", "bf16", "fp8"}) {
    EXPECT_GT(token_error(mode, shape), before) << mode;
    before = token_error(mode, shape);
  }
  shape.set(models::MixtureSizes{.experts = 4});
  EXPECT_EQ(token_error("fp64", shape), 0.125) << "rounding may choose another expert";
  EXPECT_EQ(token_error("fp8", shape), 0.5);
}

}  // namespace
}  // namespace colossal::align::first_loss_test
