// Plans of drawings from shapes alone.
#include "colossal/predict/drawing_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/plan/profile.h"
#include "colossal/run/data.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/program.h"

namespace colossal::predict::drawing_plan_test {
namespace {

run::PipelineSource pipeline_of(const std::string& preset) {
  const run::Config config = run::read_given_config("", {"--model.name=" + preset}).config;
  const run::ResolvedModel model = run::resolve_model(config, run::built_in());
  run::PipelineSource source = dynamic_cast<const run::DiffusionObjective&>(*model.objective.objective).pipeline();
  source.model = preset;
  return source;
}

DrawingPlan planned(const std::string& preset, const DrawnWork& work, const DrawnLoading& loading = {},
                    const char* cluster = "rtx-3060") {
  return plan_drawing(pipeline_of(preset), work, loading, plan::find_profile(cluster), run::built_in());
}

TEST(DrawingPlan, CountsThePartsOfStableDiffusion) {
  const DrawingPlan plan = planned("sd-1.5", {.cells = {64, 64}}, {.dtype = at::kBFloat16});
  ASSERT_EQ(plan.parts.size(), 3u);
  EXPECT_EQ(plan.parts[0].name, "text encoder");
  EXPECT_EQ(plan.parts[1].name, "model");
  EXPECT_EQ(plan.parts[1].weights, 2 * 859'520'964);
  EXPECT_EQ(plan.parts[2].name, "decoder");
  EXPECT_EQ(plan.parts[2].weights, 2 * 83'653'863);
  for (const DrawnPart& part : plan.parts) EXPECT_GT(part.peak_bytes, part.weights) << part.name;
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.sent, 0);
  EXPECT_GT(plan.seconds, 25 * plan.step_seconds);
  const nlohmann::json json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json["parts"][2]["name"], "decoder");
  EXPECT_THAT(to_text(plan), testing::HasSubstr("fits rtx-3060"));
}

TEST(DrawingPlan, CountsTiles) {
  const auto decoder_of = [](int64_t side, bool in_tiles) {
    DrawnWork work{.cells = {side, side}};
    work.in_tiles = in_tiles;
    const DrawnPart part = planned("sd-1.5", work, {.dtype = at::kBFloat16}).parts.at(2);
    return part.peak_bytes - part.weights;
  };
  const int64_t one = decoder_of(64, false), tiled = decoder_of(128, true);
  EXPECT_GT(tiled, one);
  EXPECT_LT(tiled, one + 2 * int64_t{4} * 3 * 1024 * 1024 * 2) << "a row of tiles and the pictures";
}

TEST(DrawingPlan, CountsRowsRanksAndTravellingWeights) {
  const DrawnWork guided{.cells = {16, 16}, .count = 4, .at_once = 4};
  DrawnWork plain = guided;
  plain.is_guided = false;
  const DrawingPlan one = planned("dit-tiny", guided), half = planned("dit-tiny", plain);
  EXPECT_GT(one.parts.at(0).peak_bytes, half.parts.at(0).peak_bytes);
  EXPECT_EQ(one.parts.at(0).weights, half.parts.at(0).weights);
  DrawnLoading split;
  split.layout.tensor.size = 2;
  const DrawingPlan two = planned("dit-tiny", guided, split, "a100-8x");
  EXPECT_EQ(two.ranks, 2);
  EXPECT_GT(two.sent, 0);
  EXPECT_LT(two.parts.at(0).weights, one.parts.at(0).weights);
  DrawnLoading streamed;
  streamed.memory.device = int64_t{3} << 20;
  EXPECT_LE(planned("dit-tiny", guided, streamed).parts.at(0).weights, streamed.memory.device);
}

TEST(DrawingPlan, SharesThePassesOfGuidance) {
  const DrawnWork work{.cells = {64, 64}};
  const DrawingPlan one = planned("sd-1.5", work, {}, "a100-8x"),
                    two = planned("sd-1.5", work, {.guidance_ranks = 2}, "a100-8x");
  EXPECT_EQ(two.ranks, 2);
  EXPECT_EQ(two.sent, run::elements_of_halves(1, 4 * 64 * 64));
  EXPECT_EQ(two.parts.at(1).weights, one.parts.at(1).weights);
  EXPECT_LT(two.parts.at(1).peak_bytes, one.parts.at(1).peak_bytes);
  EXPECT_LT(two.step_seconds, 0.7 * one.step_seconds);
}

}  // namespace
}  // namespace colossal::predict::drawing_plan_test
