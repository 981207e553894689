// Pictures of a model that trained a little: what they depend on, in each layout.
#include "colossal/diffusion/drawing.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/drawn_class.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/pipeline_source.h"
#include "diffusion/diffusion_runs.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::drawing_test {
namespace {

using testing::HasSubstr;
using Flags = std::vector<std::string>;

/// Returns the plan of a sampler for the model of a run.
noise::SamplerPlan plan_for(const run::DiffusionObjective& objective, const noise::SamplerOptions& sampler) {
  noise::SamplerOptions options =
      run::options_of(objective.pipeline(), {.sampler = sampler.sampler, .steps = sampler.steps});
  options.variance = sampler.variance;
  return noise::plan_sampler(noise::NoiseLevels(objective.keys().levels()), options);
}

class Drawings : public DiffusionRuns {
 protected:
  /// Trains a run and draws with its model. Returns the pictures of rank 0, one after another of each drawing.
  at::Tensor drawn(const Flags& flags, const std::vector<Drawing>& drawings,
                   const noise::SamplerOptions& sampler = {.steps = 4}) const {
    std::vector<at::Tensor> pictures;
    train(config("drawn", flags), train::Start::Overwrite, 0, [&](train::Trainer& trainer, int rank) {
      const auto& objective = dynamic_cast<const run::DiffusionObjective&>(trainer.engine().objective());
      for (const Drawing& drawing : drawings) {
        const at::Tensor of_one = draw(trainer.engine().distributed(), plan_for(objective, sampler), drawing);
        if (rank == 0) pictures.push_back(of_one);
      }
    });
    return at::cat(pictures);
  }
};

bool is_near(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 1e-9, 1e-9); }

TEST_F(Drawings, DependOnTheirSeedAndClassAlone) {
  const at::Tensor all = drawn({}, {{.classes = {3, 7}, .seeds = {1, 2}, .guidance = 3},
                                    {.classes = {7}, .seeds = {2}, .guidance = 3},
                                    {.classes = {7}, .seeds = {2}, .guidance = 1},
                                    {.classes = {10}, .seeds = {2}, .guidance = 1}});
  ASSERT_EQ(all.sizes(), (std::vector<int64_t>{5, 3, 8, 8}));
  EXPECT_TRUE(is_near(all[1], all[2]));
  EXPECT_FALSE(is_near(all[0], all[1]));
  EXPECT_FALSE(is_near(all[2], all[3])) << "guidance";
  EXPECT_FALSE(is_near(all[3], all[4])) << "the null class";
}

TEST_F(Drawings, EqualThoseOfOneProcessInEveryLayout) {
  const std::vector<Drawing> drawing{{.classes = {3, 7, 1}, .seeds = {1, 2, 3}, .guidance = 3, .rescale = 0.5}};
  const at::Tensor want = drawn({}, drawing);
  for (const Flags& layout :
       {Flags{"--parallel.tensor.size=2"}, Flags{"--parallel.tensor.size=4", "--parallel.tensor.mode=2d"},
        Flags{"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"}, Flags{"--parallel.sequence.size=2"},
        Flags{"--parallel.data=2", "--parallel.zero=3"}})
    EXPECT_TRUE(is_near(drawn(layout, drawing), want)) << testing::PrintToString(layout);
}

TEST_F(Drawings, FollowEverySampler) {
  for (const std::string& sampler : noise::sampler_names()) {
    const bool is_flow = sampler == "flow";
    const Flags flags{is_flow ? "--diffusion.target=flow" : "--diffusion.target=v"};
    const std::vector<Drawing> drawing{{.classes = {4}, .seeds = {5}, .guidance = 2}};
    const at::Tensor few = drawn(flags, drawing, {.sampler = sampler, .steps = 3});
    EXPECT_TRUE(few.isfinite().all().item<bool>()) << sampler;
    EXPECT_FALSE(is_near(few, drawn(flags, drawing, {.sampler = sampler, .steps = 5}))) << sampler;
  }
}

// With a learned variance the noise of ddpm lies between those of both fixed variances.
TEST_F(Drawings, UseThePredictedVariance) {
  const Flags flags{"--diffusion.target=epsilon", "--model.learned_sigma=true"};
  const std::vector<Drawing> drawing{{.classes = {4}, .seeds = {5}}};
  const auto by = [&](noise::Variance variance) {
    return drawn(flags, drawing, {.sampler = "ddpm", .steps = 5, .variance = variance});
  };
  const at::Tensor learned = by(noise::Variance::Learned);
  train(config("chosen", flags), train::Start::Overwrite, 0, [](train::Trainer& trainer, int) {
    const auto& objective = dynamic_cast<const run::DiffusionObjective&>(trainer.engine().objective());
    EXPECT_TRUE(run::plan_of(objective.pipeline(), {.sampler = "ddpm"}).steps.front().learned)
        << "without being asked for";
  });
  EXPECT_FALSE(is_near(learned, by(noise::Variance::Small)));
  EXPECT_FALSE(is_near(learned, by(noise::Variance::Large)));
}

TEST_F(Drawings, BeginWithTheGivenNoise) {
  const at::Tensor start = at::randn({1, 3, 8, 8}, at::kDouble);
  const at::Tensor all = drawn({}, {{.classes = {4}, .seeds = {5}, .start = start},
                                    {.classes = {4}, .seeds = {6}, .start = start},
                                    {.classes = {4}, .seeds = {5}}});
  EXPECT_TRUE(is_near(all[0], all[1])) << "ddim draws no other noise";
  EXPECT_FALSE(is_near(all[0], all[2]));
}

TEST_F(Drawings, RefuseWhatTheModelCannotDraw) {
  const auto refused = [&](const Drawing& drawing) { return test::thrown_message([&] { drawn({}, {drawing}); }); };
  EXPECT_THAT(refused({.classes = {11}, .seeds = {1}}), HasSubstr("got 11"));
  EXPECT_THAT(refused({.classes = {1, 2}, .seeds = {1}}), HasSubstr("2 classes and 1 seeds"));
  EXPECT_THAT(refused({.classes = {1}, .seeds = {1}, .start = at::zeros({1, 3, 8, 4})}), HasSubstr("[1, 3, 8, 8]"));
}

TEST(DrawnClass, TakesANameOrANumber) {
  const std::vector<std::string> names{"circle", "star"};
  EXPECT_EQ(drawn_class("star", names, 2), 1);
  EXPECT_EQ(drawn_class("0", names, 2), 0);
  EXPECT_THAT(test::thrown_message([&] { drawn_class("stan", names, 2); }), HasSubstr("did you mean `star`?"));
  EXPECT_THAT(test::thrown_message([&] { drawn_class("2", names, 2); }), HasSubstr("[0, 2): got 2"));
}

TEST(DrawOptions, RefuseNumbersOutOfRange) {
  const auto refused = [](const DrawOptions& options) { return test::thrown_message([&] { options.check("x:3: "); }); };
  EXPECT_EQ(refused({.drawn = "a"}), "");
  EXPECT_THAT(refused({}), HasSubstr("x:3: what to draw must be given"));
  EXPECT_THAT(refused({.prompt = "b", .drawn = "a"}), HasSubstr("got both"));
  EXPECT_THAT(refused({.drawn = "a", .size = "64"}), HasSubstr("x:3: size must be a width and a height"));
  EXPECT_THAT(refused({.drawn = "a", .mask = "m.png"}), HasSubstr("a mask must come with the image"));
  EXPECT_THAT(refused({.drawn = "a", .eta = 2}), HasSubstr("eta must be between 0 and 1: got 2"));
  EXPECT_THAT(refused({.drawn = "a", .count = 0}), HasSubstr("count"));
}

// Pixels of the middle gray are 127.5, which is rounded to the even number.
TEST(Drawing, RoundsPixelsToEightBits) {
  const data::Picture picture = picture_of(at::tensor({-2.0, -1.0, 0.0, 1.0, 3.0, 0.5}).view({3, 1, 2}));
  EXPECT_EQ(picture.width, 2);
  EXPECT_EQ(picture.rgb, (std::vector<uint8_t>{0, 128, 255, 0, 255, 191}));
}

}  // namespace
}  // namespace colossal::diffusion::drawing_test
