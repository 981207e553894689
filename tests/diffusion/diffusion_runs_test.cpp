// Runs that learn to draw: every layout, evaluations, resumes, samples.
#include "diffusion/diffusion_runs.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "colossal/base/file.h"
#include "colossal/data/pictures/picture.h"
#include "support/layouts.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::diffusion_runs_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using Flags = std::vector<std::string>;

TEST_F(DiffusionRuns, HaveTheCourseOfOneProcessInEveryLayout) {
  const auto course = [&](const Flags& layout) {
    return course_of(config("run", layout),
                     {"loss", "grad_norm", "eval_loss", "eval_loss_1", "eval_loss_2", "eval_loss_3", "eval_loss_4"});
  };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(3 + 3 + 5));
  const std::string size = "--parallel.tensor.size=", mode = "--parallel.tensor.mode=";
  for (const Flags& layout :
       {Flags{"--parallel.data=2", "--parallel.zero=3"}, Flags{size + "2"}, Flags{size + "4", mode + "2d"},
        Flags{size + "8", mode + "3d"}, Flags{"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"},
        Flags{"--parallel.sequence.size=2"},
        Flags{"--memory.host=64MiB", "--memory.recompute=block", "--training.accumulate=2"}})
    test::expect_near(course(layout), want, testing::PrintToString(layout));
}

TEST_F(DiffusionRuns, TrainEachTargetAndScheduleBelowTheFirstLoss) {
  for (const Flags& flags :
       {Flags{"--diffusion.target=epsilon", "--diffusion.min_snr=5"},
        Flags{"--diffusion.target=v", "--diffusion.zero_terminal_snr=true"},
        Flags{"--diffusion.target=flow", "--diffusion.times=logit-normal", "--diffusion.shift=3"},
        Flags{"--diffusion.target=edm"}, Flags{"--diffusion.target=sample", "--diffusion.schedule=cosine"},
        Flags{"--diffusion.target=epsilon", "--model.learned_sigma=true"},
        Flags{"--diffusion.target=epsilon", "--diffusion.offset_noise=0.1", "--diffusion.input_perturbation=0.1"}}) {
    const run::Config c = config("target", test::joined(flags, {"--training.steps=12", "--training.evaluate_every=6"}));
    train(c);
    const std::vector<double> found = metric(c, "eval_loss");
    ASSERT_THAT(found, SizeIs(2));
    EXPECT_LT(found[1], found[0]) << testing::PrintToString(flags);
  }
}

TEST_F(DiffusionRuns, ContinueBitForBit) {
  const Flags flags{"--training.steps=6", "--training.save_every=2", "--training.ema=0.9", "--data.mirror=true"};
  const run::Config whole = config("whole", flags), parts = config("parts", flags);
  train(whole);
  train(parts, train::Start::Overwrite, 3);
  train(parts, train::Start::Resume);
  for (const char* name : {"loss", "grad_norm", "eval_loss", "eval_loss_4"})
    EXPECT_EQ(metric(parts, name), metric(whole, name)) << name;
}

// Held-out pictures keep their noise and times, so equal weights have equal losses at any step.
TEST_F(DiffusionRuns, EvaluateWithFixedNoise) {
  const run::Config c = config(
      "still", {"--optimizer.learning_rate=0", "--optimizer.final_learning_rate=0", "--training.evaluate_every=1"});
  train(c);
  const std::vector<double> found = metric(c, "eval_loss");
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_THAT(found, testing::Each(found[0]));
}

TEST_F(DiffusionRuns, DrawSamplesIntoTheFolderAndTheReport) {
  const run::Config c =
      config("samples", {"--training.sample_every=2", "--training.sample_prompt=heart", "--parallel.pipeline.size=2",
                         "--parallel.pipeline.micro_batches=2", "--parallel.data=2", "--parallel.zero=3"});
  train(c, train::Start::Overwrite, 0,
        [](train::Trainer& trainer, int) { EXPECT_THAT(trainer.samples({}), SizeIs(4)); });
  size_t pictures = 0;
  for (const auto& entry : std::filesystem::directory_iterator(c.run.folder + "/samples")) {
    const data::Picture picture = data::decode_picture(read_file(entry.path(), 1 << 20), "sample");
    EXPECT_EQ(picture.width, 8);
    ++pictures;
  }
  EXPECT_GE(pictures, 4u);
}

TEST_F(DiffusionRuns, DrawNoSamplesAfterAStop) {
  const run::Config c = config("stopped", {"--parallel.data=2", "--training.steps=1"});
  for (const int64_t stop_after : {0, 1})
    train(c, train::Start::Overwrite, stop_after,
          [&](train::Trainer& trainer, int) { EXPECT_THAT(trainer.samples({}), SizeIs(stop_after == 0 ? 4 : 0)); });
}

TEST_F(DiffusionRuns, NameTheClassesOfTheData) {
  const run::Config c = config("names");
  train(c, train::Start::Overwrite, 0, [](train::Trainer& trainer, int) {
    const auto names = trainer.engine().model().shape.task().class_names;
    ASSERT_THAT(names, SizeIs(10));
    EXPECT_EQ(names[6], "star");
  });
}

TEST_F(DiffusionRuns, RefuseKeysThatDoNotFit) {
  const auto refused = [&](const Flags& flags) { return test::thrown_message([&] { train(config("bad", flags)); }); };
  EXPECT_THAT(refused({"--diffusion.target=epsilom"}), HasSubstr("did you mean `epsilon`?"));
  EXPECT_THAT(refused({"--diffusion.target=epsilon", "--diffusion.zero_terminal_snr=true"}), HasSubstr("\"v\""));
  EXPECT_THAT(refused({"--diffusion.times=mode"}), HasSubstr("flow"));
  EXPECT_THAT(refused({"--diffusion.shift=3"}), HasSubstr("flow"));
  EXPECT_THAT(refused({"--diffusion.target=flow", "--diffusion.schedule=linear"}), HasSubstr("schedule"));
  EXPECT_THAT(refused({"--data.size=10,8"}), HasSubstr("8x8: got 10x8"));
  EXPECT_THAT(refused({"--model.width=10"}), HasSubstr("divisible by patch"));
  EXPECT_THAT(refused({"--model.classes=4"}), HasSubstr("set model.classes"));
  EXPECT_THAT(refused({"--data.path=builtin-shape"}), HasSubstr("builtin-shapes"));
  EXPECT_THAT(refused({"--training.sample_prompt=stair", "--training.sample_every=1"}),
              HasSubstr("did you mean `star`?"));
}

}  // namespace
}  // namespace colossal::diffusion::diffusion_runs_test
