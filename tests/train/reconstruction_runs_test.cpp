// Runs of an autoencoder of drawn shapes, in fp64: every layout that it has, evaluations, resumes, refusals.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/report/metrics.h"
#include "colossal/run/program.h"
#include "colossal/train/trainer.h"
#include "support/layouts.h"
#include "support/run_courses.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::train::reconstruction_runs_test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using Flags = std::vector<std::string>;

class ReconstructionRuns : public testing::Test {
 protected:
  run::Config config(const std::string& name, const Flags& flags = {}) const {
    const Flags own{"--run.folder=" + (folder_ / name),
                    "--run.device=cpu",
                    "--run.matmul=mkl",
                    "--precision.mode=fp64",
                    "--parallel.chunk_mib=0.05",
                    "--model.height=8",
                    "--model.width=8",
                    "--model.levels=8,16",
                    "--model.groups=4",
                    "--reconstruction.kl=0.01",
                    "--data.path=builtin-shapes:80",
                    "--data.held_out=0.2",
                    "--optimizer.warmup_steps=0",
                    "--training.batch_size=8",
                    "--training.steps=3",
                    "--training.evaluate_batches=1",
                    "--training.evaluate_every=3"};
    return run::read_given_config(test::source_dir() + "/examples/vae_shapes.toml", test::joined(own, flags)).config;
  }
  static void train(const run::Config& c, Start start = Start::Overwrite, int64_t stop_after = 0) {
    comm::run_ranks(static_cast<int>(c.parallel.ranks()), [&](comm::World& world) {
      int64_t steps = 0;
      TrainerOptions options{.start = start};
      options.stop_requested = [&] { return stop_after > 0 && ++steps >= stop_after; };
      Trainer(world, c, options).run();
    });
  }
  static std::vector<double> metric(const run::Config& c, const std::string& name) {
    std::vector<double> values;
    for (const double value : report::read_metrics(c.run.folder + "/metrics.jsonl").values(name, -1e300))
      if (value > -1e300) values.push_back(value);
    return values;
  }
  test::TemporaryFolder folder_;
};

TEST_F(ReconstructionRuns, HaveTheCourseOfOneProcessInEveryLayout) {
  const auto course = [&](const Flags& layout) { return test::run_course(config("run", layout), run::built_in()); };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(3 * 2 + 4 + 1));
  const std::string pipeline = "--parallel.pipeline.size=", micro = "--parallel.pipeline.micro_batches=";
  for (const Flags& layout :
       {Flags{"--parallel.data=2", "--parallel.zero=3"}, Flags{pipeline + "2", micro + "2"},
        Flags{pipeline + "2", micro + "2", "--parallel.data=2", "--parallel.zero=1", "--memory.recompute=block"},
        Flags{"--memory.host=64MiB", "--memory.recompute=block", "--training.accumulate=2"},
        Flags{"--memory.recompute=selective"}})
    test::expect_near(course(layout), want, testing::PrintToString(layout));
}

TEST_F(ReconstructionRuns, LearnAndContinueBitForBit) {
  const Flags flags{"--training.steps=6", "--training.save_every=2", "--training.evaluate_every=2"};
  const run::Config whole = config("whole", flags), parts = config("parts", flags);
  train(whole);
  train(parts, Start::Overwrite, 3);
  train(parts, Start::Resume);
  for (const char* name : {"loss", "grad_norm", "eval_loss", "eval_l1", "eval_kl", "eval_psnr"})
    EXPECT_EQ(metric(parts, name), metric(whole, name)) << name;
  const std::vector<double> found = metric(whole, "eval_loss"), decibels = metric(whole, "eval_psnr");
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_LT(found[2], found[0]);
  EXPECT_GT(decibels[2], decibels[0]);
}

// Held-out pictures keep their noise, so equal weights have equal losses at any step.
TEST_F(ReconstructionRuns, EvaluateWithFixedNoise) {
  const run::Config c = config(
      "still", {"--optimizer.learning_rate=0", "--optimizer.final_learning_rate=0", "--training.evaluate_every=1"});
  train(c);
  const std::vector<double> found = metric(c, "eval_loss");
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_THAT(found, testing::Each(found[0]));
}

TEST_F(ReconstructionRuns, RefuseLayoutsAndKeysThatDoNotFit) {
  const auto refused = [&](const Flags& flags) { return test::thrown_message([&] { train(config("bad", flags)); }); };
  for (const Flags& split : {Flags{"--parallel.tensor.size=2"}, Flags{"--parallel.sequence.size=2"},
                             Flags{"--parallel.tensor.size=4", "--parallel.tensor.mode=2d"}})
    EXPECT_THAT(refused(split), HasSubstr("each rank has whole pictures")) << testing::PrintToString(split);
  EXPECT_THAT(refused({"--data.size=10,9"}), HasSubstr("nearest: [10, 10]"));
  EXPECT_THAT(refused({"--data.path=builtin-shape"}), HasSubstr("builtin-shapes"));
  EXPECT_THAT(refused({"--data.buckets=8"}), HasSubstr("data.buckets"));
  EXPECT_THAT(refused({"--model.hidden=32"}), HasSubstr("hidden has no effect"));
}

}  // namespace
}  // namespace colossal::train::reconstruction_runs_test
