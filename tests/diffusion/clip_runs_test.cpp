// Runs that learn clips: in pixels and in latents, of several lengths, in every layout, resumed, and with broken
// videos.
#include <gmock/gmock.h>

#include <filesystem>
#include <set>

#include "colossal/base/file.h"
#include "colossal/base/run_folder.h"
#include "colossal/data/videos/clip_writer.h"
#include "colossal/data/videos/video.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/train/sample_flops.h"
#include "diffusion/latent_runs.h"
#include "support/layouts.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::clip_runs_test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;
using Flags = std::vector<std::string>;

constexpr int64_t kMaxBytes = 1 << 26;

class ClipRuns : public LatentRuns {
 protected:
  /// A short run on drawn clips of 3 frames of 8 x 12 pixels.
  run::Config clip_config(const std::string& name, const Flags& flags = {}) const {
    const Flags own{"--run.folder=" + (folder_ / name),
                    "--run.device=cpu",
                    "--run.matmul=mkl",
                    "--precision.mode=fp64",
                    "--parallel.chunk_mib=0.05",
                    "--model.height=12",
                    "--model.width=8",
                    "--model.hidden=16",
                    "--model.heads=2",
                    "--model.kv_heads=2",
                    "--model.ffn=32",
                    "--data.path=builtin-shapes:10",
                    "--data.held_out=0.2",
                    "--data.frames=3",
                    "--data.latents=" + (shared() / "clip-latents"),
                    "--diffusion.given_frames.first=0.5",
                    "--optimizer.warmup_steps=0",
                    "--training.batch_size=4",
                    "--training.steps=3",
                    "--training.ema=0",
                    "--training.sample_every=0",
                    "--training.evaluate_batches=1",
                    "--training.evaluate_every=3"};
    run::Config c =
        run::read_given_config(test::source_dir() + "/examples/stdit_clips.toml", test::joined(own, flags)).config;
    run::complete_keys(c, program().objectives, run::tables_of(program().adapters));
    return c;
  }
  /// One in latents of the autoencoder of the suite, whose cells are 2 pixels.
  run::Config latent_clip_config(const std::string& name, const Flags& flags = {}) const {
    return clip_config(name, test::joined({"--vae.from=" + vae(), "--model.channels=4", "--model.patch=2",
                                           "--model.height=6", "--model.width=4"},
                                          flags));
  }
  /// Writes a clip of `frames` frames, each of one brightness, at 8 frames a second, with a caption.
  std::string write_clip(const std::string& name, int64_t frames, int64_t width = 8, int64_t height = 12,
                         uint8_t first = 40) const {
    const std::string path = folder_.write(name, "");
    data::ClipWriter clip(path, {width, height, 8});
    for (int64_t i = 0; i < frames; ++i)
      clip.add({width, height,
                std::vector<uint8_t>(static_cast<size_t>(width * height * 3), static_cast<uint8_t>(first + 20 * i))});
    clip.finish();
    folder_.write(std::filesystem::path(name).replace_extension("txt"), concat("clip of ", first));
    return path;
  }
  /// Writes videos of 7 and of 3 frames, and pictures.
  void write_clips(const std::string& folder) const {
    for (int i = 0; i < 5; ++i) write_clip(concat(folder, "/long-", i, ".y4m"), 7, 8, 12, static_cast<uint8_t>(10 * i));
    for (int i = 0; i < 3; ++i) write_clip(concat(folder, "/short-", i, ".gif"), 3, 8, 12, static_cast<uint8_t>(7 * i));
    write_pictures(folder, 3, 8, 12);
  }
  static std::vector<double> course(const run::Config& c) {
    train(c);
    std::vector<double> numbers;
    for (const char* name : {"loss", "grad_norm", "eval_loss"})
      for (const double value : metric(c, name)) numbers.push_back(value);
    return numbers;
  }
  static std::string log_of(const run::Config& c) { return read_file(RunFolder(c.run.folder).log(0), kMaxBytes); }
};

const Flags kLengths{"--data.frames=1,2,5",        "--data.keep=1,0.6,0.7", "--data.batch_sizes=4,2,2",
                     "--data.held_out=0.3",        "--training.steps=14",   "--training.ema=0.9",
                     "--training.evaluate_every=7"};

TEST_F(ClipRuns, HaveTheCourseOfOneProcessInEveryLayout) {
  const std::vector<double> want = course(clip_config("run"));
  ASSERT_THAT(want, SizeIs(3u + 3u + 1u));
  for (const Flags& layout : {Flags{"--parallel.sequence.size=2", "--parallel.sequence.mode=dsp"},
                              Flags{"--parallel.data=2", "--parallel.zero=3", "--memory.recompute=block"},
                              Flags{"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2",
                                    "--parallel.sequence.size=2", "--parallel.sequence.mode=dsp"}})
    test::expect_near(course(clip_config("run", layout)), want, testing::PrintToString(layout));
}

// Clips of 5, 2 and 1 frames, of which each epoch has others.
TEST_F(ClipRuns, ContinueInTheMiddleOfAnEpochBitForBit) {
  write_clips("clips");
  const Flags flags = test::joined(kLengths, {"--data.path=" + (folder_ / "clips")});
  const run::Config whole = clip_config("whole", flags), parts = clip_config("parts", flags),
                    moved = clip_config("moved", flags),
                    other = clip_config(
                        "moved", test::joined(flags, {"--parallel.sequence.size=2", "--parallel.sequence.mode=dsp"}));
  EXPECT_EQ(whole.training.batch_size, 2) << "that of the largest batches";
  train(whole);
  EXPECT_THAT(log_of(whole), testing::AllOf(HasSubstr("info  bucket 8x12 of 5 frames: "), HasSubstr(" batches of 2"),
                                            HasSubstr("info  bucket 8x12 of 1 frame: ")));
  for (const int64_t step : {1, 5, 10}) {
    train(parts, train::Start::Overwrite, step);
    train(parts, train::Start::Resume);
    for (const char* name : {"loss", "grad_norm", "eval_loss", "tokens_per_second"})
      EXPECT_THAT(metric(whole, name), SizeIs(testing::Ge(2u))) << name;
    for (const char* name : {"loss", "grad_norm", "eval_loss"}) EXPECT_EQ(metric(parts, name), metric(whole, name));
  }
  train(moved, train::Start::Overwrite, 5);
  train(other, train::Start::Resume);
  test::expect_near(metric(moved, "loss"), metric(whole, "loss"), "under DSP");
  const auto weights = [](const run::Config& c) {
    return read_file(c.run.folder + "/checkpoints/step-000014/rank-00000.safetensors", kMaxBytes);
  };
  EXPECT_TRUE(weights(parts) == weights(whole)) << "weights, their average and the optimizer's states";
}

TEST_F(ClipRuns, EncodeInEachStepWhatACacheHas) {
  write_clips("clips");
  const Flags flags = test::joined(kLengths, {"--data.path=" + (folder_ / "clips"), "--training.steps=10"});
  const std::vector<double> cached = course(latent_clip_config("run", flags));
  ASSERT_THAT(cached, SizeIs(10u + 10u + 2u));
  EXPECT_EQ(course(latent_clip_config("run", test::joined(flags, {"--data.latents=none"}))), cached);
  EXPECT_EQ(course(latent_clip_config("run", flags)), cached) << "from the cache again";
  test::expect_near(course(latent_clip_config(
                        "run", test::joined(flags, {"--data.latents=none", "--parallel.data=2", "--parallel.zero=3"}))),
                    cached, "data and ZeRO");
  const std::vector<double> pixels = course(clip_config("run", flags));
  EXPECT_NE(pixels, cached);
  EXPECT_EQ(course(clip_config("run", test::joined(flags, {"--data.latents=none"}))), pixels);
}

// A UNet in pixels, whose captions are stored or read in each step.
TEST_F(ClipRuns, LearnPicturesInPixelsFromCaptions) {
  const Flags flags{"--vae.from=none",  "--model.channels=3", "--model.outputs=3",
                    "--model.height=8", "--model.width=8",    "--data.latents=" + (folder_ / "captions")};
  const std::vector<double> cached = course(latent_config("run", flags));
  EXPECT_EQ(course(latent_config("run", test::joined(flags, {"--data.latents=none"}))), cached);
  EXPECT_FALSE(std::filesystem::is_empty(folder_ / "captions"));
  EXPECT_NE(course(latent_config("run", test::joined(flags, {"--data.latents=none", "--diffusion.drop_label=1"}))),
            cached);
}

// The second half of each run, and the one in steps, are those of a run whose videos are whole.
TEST_F(ClipRuns, SkipVideosThatAreDamagedInside) {
  for (const char* folder : {"whole", "broken"})
    for (int i = 0; i < 4; ++i) write_clip(concat(folder, "/b-", i, ".gif"), 4, 8, 12, static_cast<uint8_t>(20 * i));
  const std::string path = write_clip("broken/a.gif", 4);
  const std::string whole_file = read_file(path, kMaxBytes);
  const auto decodes = [&](const std::string& name) {
    return test::thrown_message([&] {
             const std::string bytes = read_file(name, kMaxBytes);
             const data::PictureBytes source = data::bytes_of(bytes);
             const auto video = data::open_video(source, name);
             while (video->next()) video->picture();
           })
        .empty();
  };
  for (size_t i = whole_file.size() - 8; decodes(path); --i) {
    std::string bytes = whole_file;
    bytes[i] = '\xff';
    write_file(path, bytes);
    const bool opens = test::thrown_message([&] {
                         const data::PictureBytes source = data::bytes_of(bytes);
                         data::open_video(source, "a");
                       }).empty();
    if (!opens) write_file(path, whole_file);
  }
  folder_.write("broken/empty.y4m", "");
  folder_.write("broken/empty.txt", "nothing");
  const auto run_of = [&](const std::string& folder, const Flags& more = {}) {
    return test::joined({"--data.path=" + (folder_ / folder), "--data.held_out=0", "--data.on_error=skip",
                         "--training.evaluate_batches=0", "--data.latents=" + (folder_ / ("latents-" + folder))},
                        more);
  };
  const run::Config whole = latent_clip_config("whole-run", run_of("whole")),
                    skipped = latent_clip_config("run", run_of("broken")),
                    encoding = latent_clip_config("run", run_of("broken", {"--data.latents=none"}));
  const std::vector<double> want = course(whole);
  EXPECT_EQ(course(skipped), want);
  EXPECT_THAT(log_of(skipped), testing::AllOf(HasSubstr("warning  skipped: "), HasSubstr("empty.y4m is empty"),
                                              HasSubstr("a.gif is damaged")));
  train(encoding, train::Start::Overwrite, 2);
  train(encoding, train::Start::Resume);
  EXPECT_EQ(metric(encoding, "loss"), metric(whole, "loss"));
  EXPECT_THAT(
      test::thrown_message([&] { train(latent_clip_config("refused", run_of("broken", {"--data.on_error=refuse"}))); }),
      HasSubstr("set data.on_error = \"skip\""));
}

TEST_F(ClipRuns, RefuseKeysThatDoNotFit) {
  write_clips("clips");
  const auto refused = [&](const Flags& flags) {
    return test::thrown_message([&] { train(clip_config("bad", flags)); });
  };
  const std::string path = "--data.path=" + (folder_ / "clips");
  EXPECT_THAT(refused({"--data.frames=1,3", "--data.keep=0.5"}),
              HasSubstr("frames, keep and batch_sizes must have as many numbers: got 2, 1 and 2"));
  EXPECT_THAT(refused({"--data.frames=1,3", "--data.batch_sizes=3,4", "--parallel.data=2"}),
              HasSubstr("batch_sizes must be divisible by the replicas times the micro-batches, 2 x 1: got 3"));
  EXPECT_THAT(refused({"--data.frames=1,3", "--data.batch_sizes=4,3", "--parallel.data=2"}),
              HasSubstr("[data] batch_sizes must be divisible by the replicas times the micro-batches, 2 x 1: got 3"));
  EXPECT_THAT(refused({path, "--data.frames=1,9"}),
              HasSubstr("empty bucket: no clip has 9 frames at 8 a second; the longest has 7"));
  EXPECT_THAT(refused({"--vae.from=hunyuan-video-vae-tiny", "--model.channels=4", "--data.frames=1,6"}),
              HasSubstr("[data] frames must be lengths that can be encoded: the autoencoder makes clips of 4 k + 1 "
                        "frames: got 6; nearest: 5"));
  EXPECT_THAT(refused({"--data.mirror=true"}), HasSubstr("captions name directions"));
  EXPECT_THAT(refused({path, "--data.keep=1e-9"}), HasSubstr("keep must leave a batch in 1000 epochs at least"));
  EXPECT_THAT(refused({"--data.frames=1,3", "--training.cuda_graph=true"}), HasSubstr("one length"));
  EXPECT_THAT(test::thrown_message([&] { train(latent_config("bad", {"--data.frames=3"})); }),
              HasSubstr("need a model of clips: got one of pictures; remove data.frames"));
  EXPECT_THAT(test::thrown_message([&] { train(latent_config("bad", {"--data.fps=8"})); }),
              HasSubstr("remove data.fps"));
  const run::Config c = clip_config("one", {"--data.frames=1,3", "--data.batch_sizes=6,2"});
  EXPECT_EQ(c.training.batch_size, 2) << "6 frames each; of equal batches those of the longest clips count";
}

TEST_F(ClipRuns, DrawSamplesOfTheSizeAndLengthOfTheData) {
  const run::Config c = clip_config(
      "samples", {"--data.size=16,8", "--data.frames=1,2", "--training.sample_every=2", "--training.sample_tokens=9",
                  "--training.steps=1", "--training.sample_prompt=a circle moves left"});
  train(c, train::Start::Overwrite, 0, [&](train::Trainer& trainer, int) {
    const std::vector<run::Sample> samples = trainer.samples({});
    ASSERT_THAT(samples, SizeIs(1));
    const data::PictureBytes bytes = data::bytes_of(samples[0].bytes);
    const auto video = data::open_video(bytes, "sample");
    EXPECT_EQ(video->size(), (data::PictureSize{16, 8}));
    EXPECT_NEAR(video->seconds(), 2 / 8., 0.011);
  });
  const run::Config pictures = latent_config("pictures", {"--data.size=32,16", "--training.steps=1"});
  train(pictures, train::Start::Overwrite, 0, [&](train::Trainer& trainer, int) {
    const std::vector<run::Sample> samples = trainer.samples({});
    ASSERT_THAT(samples, SizeIs(4));
    EXPECT_EQ(data::decode_picture(samples[0].bytes, "sample").width, 32);
  });
}

// A batch of shorter clips has fewer tokens and operations.
TEST_F(ClipRuns, CountTheWorkOfEachSize) {
  const run::ResolvedModel model = run::resolve_model(clip_config("work", {"--data.frames=2,4"}), program());
  const run::ResolvedModel small = run::resolve_model(clip_config("work", {"--data.frames=2"}), program());
  const run::Objective &both = *model.objective.objective, &two = *small.objective.objective;
  const tensor::Batch batch = two.example(3), larger = both.example(3);
  EXPECT_EQ(both.tokens(batch, model.shape), 3 * 2 * 6);
  EXPECT_EQ(both.tokens(larger, model.shape), 3 * 4 * 6);
  train::SampleFlops flops(model.shape, both);
  EXPECT_EQ(flops.of(larger), run::costs_of(model.shape, both).sum());
  EXPECT_EQ(flops.of(batch), run::costs_of(small.shape, two).sum());
  EXPECT_LT(flops.of(batch), 0.7 * flops.of(larger));
}

}  // namespace
}  // namespace colossal::diffusion::clip_runs_test
