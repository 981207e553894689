// The estimates by which a search leaves out layouts: steps of shallow models, prices, and cuts into stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/config.h"
#include "colossal/base/error.h"
#include "colossal/predict/layout_price.h"
#include "colossal/predict/layouts.h"
#include "colossal/predict/roles.h"
#include "colossal/predict/shallow_step.h"
#include "colossal/predict/stage_seconds.h"
#include "colossal/predict/step.h"
#include "colossal/run/program.h"
#include "colossal/train/memory_needs.h"
#include "predict/small_runs.h"

namespace colossal::predict::layout_estimates_test {
namespace {

TEST(ShallowSteps, ContinueToTheWholeModel) {
  models::ModelShape shape = small_shape();
  shape.layers = 12;
  const plan::Cluster cluster(small_cluster(kAmple));
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--parallel.data=2"},
                                             {"--parallel.data=2", "--parallel.zero=3", "--memory.recompute=block"},
                                             {"--parallel.tensor=2", "--training.accumulate=2"},
                                             {"--parallel.pipeline={size=2,micro_batches=4}"}}) {
    run::Config config = run::read_given_config("", flags).config;
    config.run.device = "cpu";
    config.data.sequence = 16;
    config.training.batch_size = 4;
    const auto shallow = shallow_step({config, {.shape = shape}}, cluster);
    ASSERT_TRUE(shallow);
    if (config.parallel.pipeline.size > 1) config.parallel.pipeline.layers_per_stage = {6, 6};
    const plan::Prediction whole = predict_step({config, shape}, record_stages({config, shape}), cluster);
    // A search takes estimates up to 5 % off for those of the whole model.
    EXPECT_NEAR(shallow->seconds, whole.step_seconds, 0.05 * whole.step_seconds) << flags.back();
    const auto peak = static_cast<double>(whole.peak_bytes);
    EXPECT_NEAR(shallow->peak_bytes, peak, 0.05 * peak) << flags.back();
  }
}

TEST(LayoutPrices, BoundMemoryFromBelow) {
  const models::ModelShape shape = small_shape();
  const plan::Cluster cluster(small_cluster(kAmple));
  const LayoutSpace space({small_config(), {.shape = shape}}, {.ranks = 4, .ranks_per_node = 4});
  const LayoutPrices prices(space, {.shape = shape}, cluster);
  int64_t count = 0;
  space.for_each([&](const Layout& layout) {
    if (++count % 197 != 0) return;  // a sample
    const run::Config config = space.config_of(layout);
    try {
      config.validate();
      const auto prediction = predict_step({config, shape}, record_stages({config, shape}), cluster);
      const LayoutPrice price = prices.of(layout);
      EXPECT_LE(price.bound_bytes, static_cast<double>(prediction.peak_bytes)) << to_toml(config.parallel);
      EXPECT_GT(price.seconds, 0);
    } catch (const Error&) {
      return;  // not legal for the model
    }
  });
  EXPECT_GT(count, 100);
}

TEST(StageSeconds, EqualTheCutOfARunForEqualRates) {
  models::ModelShape shape = small_shape();
  shape.layers = 6;
  run::Config config = small_config();
  config.parallel.pipeline = {.size = 2, .micro_batches = 4};
  models::Costs costs{.first = 0, .blocks = std::vector<double>(6, 1.0), .last = 2};
  config.parallel.pipeline.layers_per_stage = layers_by_costs(config, costs);
  EXPECT_THAT(config.parallel.pipeline.layers_per_stage, ::testing::ElementsAre(4, 2));
  plan::Prediction prediction;
  prediction.roles.resize(2);
  for (plan::PredictedRole& role : prediction.roles) role.seconds.compute = 4;  // four units of operations on each
  prediction.roles[0].kinds.activations = 400;
  prediction.roles[1].kinds.activations = 200;
  EXPECT_EQ(layers_by_seconds(config, costs, prediction, 1e9), config.parallel.pipeline.layers_per_stage);
  prediction.roles[0].seconds.compute = 12;  // a slow first stage gets fewer blocks
  const auto moved = layers_by_seconds(config, costs, prediction, 1e9);
  ASSERT_TRUE(moved);
  EXPECT_LT(moved->front(), 4);
  prediction.roles[0].seconds.compute = 4;  // memory for three of its blocks
  EXPECT_THAT(layers_by_seconds(config, costs, prediction, 300).value(), ::testing::ElementsAre(3, 3));
  EXPECT_FALSE(layers_by_seconds(config, costs, prediction, 50));
}

}  // namespace
}  // namespace colossal::predict::layout_estimates_test
