// Runs of autoencoders of pictures and of clips, in fp64: every layout that they have, videos without captions,
// evaluations, resumes, refusals.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/data/videos/clip_encoder.h"
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
  run::Config clips(const std::string& name, const Flags& flags = {}) const {
    const Flags own{"--model.name=open-sora-vae-tiny",
                    "--model.levels=4,8",
                    "--model.filters=4",
                    "--model.multipliers=1,2",
                    "--model.halves=1",
                    "--model.frames=5",
                    "--data.frames=1,3",
                    "--data.keep=1,0.5",
                    "--data.batch_sizes=8,4",
                    "--data.fps=8",
                    "--data.mirror=false",
                    "--training.batch_size=4"};
    return config(name, test::joined(own, flags));
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

TEST_F(ReconstructionRuns, HaveTheCourseOfOneProcessWithClips) {
  const auto course = [&](const Flags& layout) { return test::run_course(clips("run", layout), run::built_in()); };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(3 * 2 + 4 + 1));
  for (const Flags& layout : {Flags{"--parallel.data=2", "--parallel.zero=3"},
                              Flags{"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"}})
    test::expect_near(course(layout), want, testing::PrintToString(layout));
}

TEST_F(ReconstructionRuns, LearnFromVideosWithoutCaptions) {
  std::filesystem::create_directories(folder_ / "videos");
  for (int64_t i = 0; i < 8; ++i) {
    std::string bytes;
    const auto clip = data::encode_gif({12, 10, 8}, [&](auto piece) { bytes += piece; });
    for (int64_t frame = 0; frame < 4; ++frame) clip->add(data::draw_moving_shape(i, 1, 12, 10, frame));
    clip->finish();
    write_file(folder_ / concat("videos/", i, ".gif"), i == 5 ? bytes.substr(0, bytes.size() / 2) : bytes);
    write_file(folder_ / concat("videos/", i, ".png"), data::encode_png(data::draw_shape(i, 2, 9, 9)));
  }
  const Flags flags{"--data.path=" + (folder_ / "videos"), "--data.held_out=0.3"};
  const run::Config c = clips("videos-run", test::joined(flags, {"--data.on_error=skip"}));
  train(c);
  EXPECT_THAT(metric(c, "loss"), SizeIs(3));
  EXPECT_THAT(metric(c, "eval_psnr"), SizeIs(1));
  EXPECT_THAT(read_file(c.run.folder + "/log-rank-0.txt", 1 << 20), HasSubstr("5.gif"));
  EXPECT_THAT(test::thrown_message([&] { train(clips("bad", flags)); }), HasSubstr("5.gif"));
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
  EXPECT_THAT(refused({"--data.fps=8"}), HasSubstr("remove data.fps, or name a model of clips, such as open-sora-vae"));
  const auto refused_clips = [&](const Flags& flags) {
    return test::thrown_message([&] { train(clips("bad", flags)); });
  };
  EXPECT_THAT(refused_clips({"--data.frames=1,18"}), HasSubstr("at most the 5 of a chunk"));
  const run::Config odd =
      run::read_given_config("", {"--model.name=hunyuan-video-vae-tiny", "--data.path=builtin-shapes",
                                  "--run.device=cpu", "--data.frames=1,6", "--run.folder=" + (folder_ / "odd")})
          .config;
  EXPECT_THAT(test::thrown_message([&] { run::resolve_model(odd, run::built_in()); }),
              HasSubstr("[data] frames must be lengths that can be encoded: the autoencoder makes clips of 4 k + 1 "));
  EXPECT_THAT(refused_clips({"--data.batch_sizes=8"}), HasSubstr("batch_sizes"));
  EXPECT_THAT(refused_clips({"--data.path=nowhere"}), HasSubstr("no such file or folder: nowhere"));
}

}  // namespace
}  // namespace colossal::train::reconstruction_runs_test
