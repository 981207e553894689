// Runs that learn latents: every layout, resumes, buckets, a prior, and the cache of latents.
#include "diffusion/latent_runs.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <utility>

#include "colossal/base/file.h"
#include "colossal/base/run_folder.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/memory/account.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/train/sample_flops.h"
#include "support/layouts.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::latent_runs_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::SizeIs;
using Flags = std::vector<std::string>;

constexpr int64_t kMaxBytes = 1 << 26;

/// Returns the files of a folder and when each was written.
std::map<std::string, fs::file_time_type> files_of(const std::string& folder) {
  std::map<std::string, fs::file_time_type> files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path()] = entry.last_write_time();
  return files;
}

TEST_F(LatentRuns, HaveTheCourseOfOneProcessInEveryLayout) {
  const auto course = [&](const Flags& layout) {
    return course_of(latent_config("run", layout),
                     {"loss", "grad_norm", "eval_loss", "eval_loss_1", "eval_loss_2", "eval_loss_3", "eval_loss_4"});
  };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(testing::Ge(3u + 3u + 3u)));
  for (const Flags& layout :
       {Flags{"--parallel.data=2", "--parallel.zero=3"}, Flags{"--parallel.tensor.size=2"},
        Flags{"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2"},
        Flags{"--memory.host=64MiB", "--memory.recompute=block", "--training.accumulate=2"},
        Flags{"--parallel.data=2", "--parallel.zero=1", "--memory.host=64MiB", "--memory.disk=" + (folder_ / "disk")}})
    test::expect_near(course(layout), want, testing::PrintToString(layout));
}

// The last convolution starts at 0, so in the first step its adapter alone has gradients.
TEST_F(LatentRuns, TrainAdaptersOfEachLayerInEveryLayout) {
  const auto course = [&](const Flags& layout) {
    const run::Config c = latent_config(
        "run", test::joined({"--adapter.kind=lora", "--adapter.rank=2", "--adapter.targets=[\"*\"]",
                             "--optimizer.learning_rate=0.03", "--training.steps=10", "--training.evaluate_every=0"},
                            layout));
    train(c);
    std::vector<double> numbers = metric(c, "loss");
    const std::vector<double> norms = metric(c, "grad_norm");
    numbers.insert(numbers.end(), norms.begin(), norms.end());
    return numbers;
  };
  const std::vector<double> want = course({});
  ASSERT_THAT(want, SizeIs(20));
  EXPECT_LT(want[9], 0.9 * want[0]);
  for (const Flags& layout :
       {Flags{"--parallel.tensor.size=4", "--parallel.tensor.mode=2d"},
        Flags{"--parallel.pipeline.size=2", "--parallel.pipeline.micro_batches=2", "--memory.recompute=block"}})
    test::expect_near(course(layout), want, testing::PrintToString(layout));
}

// The run takes the parts of its base, too. Adapters that have hardly moved leave its loss as it was.
TEST_F(LatentRuns, TrainAdaptersOnARun) {
  const run::Config base = latent_config("base");
  train(base);
  const run::Config adapted =
      run::read_given_config(
          test::source_dir() + "/examples/sd_lora.toml",
          {"--run.folder=" + (folder_ / "adapted"), "--run.device=cpu", "--run.matmul=mkl", "--precision.mode=fp64",
           "--model.from=" + base.run.folder, "--data.path=" + base.data.path, "--data.held_out=0.2",
           "--data.latents=" + (shared() / "latents"), "--adapter.rank=2", "--optimizer.learning_rate=1e-30",
           "--training.batch_size=4", "--training.steps=1", "--training.evaluate_batches=1",
           "--training.evaluate_every=1"})
          .config;
  train(adapted);
  test::expect_near(metric(adapted, "eval_loss"), metric(base, "eval_loss"), "the loss of the base");
  const run::PipelineSource source = find_pipeline(adapted.run.folder, program(), "draw");
  EXPECT_EQ(source.vae, vae());
  EXPECT_EQ(source.captions.at(0).encoder, "clip-text-tiny");
}

// Pictures of two shapes, in two buckets.
TEST_F(LatentRuns, ContinueBitForBitAndUnderAnotherLayout) {
  write_pictures("pictures", 10, 16, 16);
  write_pictures("pictures", 8, 32, 16);
  const Flags flags{"--data.path=" + (folder_ / "pictures"),
                    "--data.latents=" + (folder_ / "latents"),
                    "--data.size=16,16",
                    "--data.buckets=4",
                    "--training.steps=6",
                    "--training.ema=0.9",
                    "--training.evaluate_every=2"};
  const run::Config whole = latent_config("whole", flags), parts = latent_config("parts", flags),
                    moved = latent_config("moved", flags),
                    other = latent_config("moved", test::joined(flags, {"--parallel.data=2", "--parallel.zero=3"}));
  train(whole);
  EXPECT_THAT(read_file(RunFolder(whole.run.folder).log(0), kMaxBytes), HasSubstr("info  bucket 20x12: "));
  train(parts, train::Start::Overwrite, 3);
  train(parts, train::Start::Resume);
  train(moved, train::Start::Overwrite, 3);
  train(other, train::Start::Resume);
  for (const char* name : {"loss", "grad_norm", "eval_loss"}) {
    EXPECT_THAT(metric(whole, name), SizeIs(testing::Ge(3u))) << name;
    EXPECT_EQ(metric(parts, name), metric(whole, name)) << name;
    test::expect_near(metric(moved, name), metric(whole, name), name);
  }
  const auto weights = [](const run::Config& c) {
    return read_file(c.run.folder + "/checkpoints/step-000006/rank-00000.safetensors", kMaxBytes);
  };
  EXPECT_TRUE(weights(parts) == weights(whole)) << "weights, their average and the optimizer's states";
}

// DreamBooth (2208.12242). The pictures of the class have another shape than those to learn, and are cropped to theirs.
// The rows of the pictures to learn are those of a run without a prior and half the batch.
TEST_F(LatentRuns, AddTheLossOfAPriorByItsWeight) {
  write_pictures("own", 6, 16, 16);
  write_pictures("class", 4, 32, 16, 90);
  const auto loss = [&](const Flags& more) {
    const run::Config c = latent_config(
        "prior", test::joined({"--data.path=" + (folder_ / "own"), "--data.latents=" + (folder_ / "latents"),
                               "--data.size=16,16", "--data.buckets=4", "--data.held_out=0", "--training.steps=1",
                               "--training.evaluate_batches=0", "--diffusion.min_snr=0"},
                              more));
    train(c);
    return metric(c, "loss").at(0);
  };
  const auto with_prior = [&](const std::string& weight) {
    return loss({"--data.prior=" + (folder_ / "class"), "--diffusion.prior_loss=" + weight, "--training.batch_size=8"});
  };
  const double own = loss({}), one = with_prior("1"), three = with_prior("3");
  EXPECT_NEAR(with_prior("0"), own, 1e-12);
  EXPECT_GT(one, own + 0.1);
  EXPECT_NEAR(three - own, 3 * (one - own), 1e-12);
}

TEST_F(LatentRuns, EncodeEachPictureAndCaptionOnce) {
  const std::string latents = folder_ / "latents";
  const Flags flags{"--data.latents=" + latents, "--training.steps=1", "--training.evaluate_every=1"};
  const auto loss = [&](const std::string& name) {
    const run::Config c = latent_config(name, flags);
    train(c);
    return metric(c, "eval_loss");
  };
  const std::vector<double> first = loss("first");
  const auto files = files_of(latents);
  EXPECT_EQ(loss("second"), first);
  EXPECT_EQ(files_of(latents), files) << "a second run encodes nothing";
  std::string largest;
  for (const auto& [path, time] : files)
    if (largest.empty() || fs::file_size(path) > fs::file_size(largest)) largest = path;
  const std::string whole = read_file(largest, kMaxBytes);
  std::string damaged = whole;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_file(largest, damaged);
  EXPECT_EQ(loss("third"), first);
  EXPECT_TRUE(read_file(largest, kMaxBytes) == whole) << "what is damaged is made again";
}

TEST_F(LatentRuns, EncodeInEachStepWhatACacheHas) {
  const auto course = [&](const Flags& flags) {
    return course_of(latent_config("run", test::joined(flags, {"--data.mirror=true"})),
                     {"loss", "grad_norm", "eval_loss"});
  };
  const std::vector<double> cached = course({});
  EXPECT_EQ(course({"--data.latents=none"}), cached);
  test::expect_near(course({"--data.latents=none", "--parallel.data=2", "--parallel.zero=3"}), cached, "data and ZeRO");
  const Flags fp32{"--precision.mode=fp32", "--training.steps=1", "--training.evaluate_batches=0"};
  EXPECT_EQ(course(test::joined(fp32, {"--data.latents=none"})), course(fp32));
}

TEST_F(LatentRuns, ContinueWithACacheOrWithoutOne) {
  const std::string cache = shared() / "latents";
  const run::Config whole = latent_config("whole");
  train(whole);
  for (const auto& [begun, ended] : {std::pair<std::string, std::string>{"none", cache}, {cache, "none"}}) {
    train(latent_config("run", {"--data.latents=" + begun}), train::Start::Overwrite, 2);
    const run::Config rest = latent_config("run", {"--data.latents=" + ended});
    train(rest, train::Start::Resume);
    EXPECT_EQ(metric(rest, "loss"), metric(whole, "loss")) << begun;
  }
}

// The second half of a run is that of a whole one, whose pictures are those that can be decoded.
TEST_F(LatentRuns, SkipBrokenPicturesAndResumeWhileEncoding) {
  const auto run_of = [&](const std::string& pictures, const std::string& latents) {
    return latent_config("run",
                         {"--data.path=" + (folder_ / pictures), "--data.latents=" + latents, "--data.size=16,16",
                          "--data.on_error=skip", "--data.held_out=0", "--training.evaluate_batches=0"});
  };
  write_pictures("whole", 5, 16, 16);
  const run::Config whole = run_of("whole", folder_ / "latents");
  train(whole);
  const std::vector<double> want = metric(whole, "loss");
  write_pictures("broken", 5, 16, 16);
  std::string png = read_file(folder_ / "broken/16x16-0.png", kMaxBytes);
  png[png.size() - 17] ^= 1;  // the last byte of its pixels
  folder_.write("broken/0.png", png);
  folder_.write("broken/0.txt", "a star");
  const run::Config cached = run_of("broken", folder_ / "more"), encoding = run_of("broken", "none");
  train(cached);
  EXPECT_EQ(metric(cached, "loss"), want);
  train(encoding, train::Start::Overwrite, 2);
  train(encoding, train::Start::Resume);
  EXPECT_EQ(metric(encoding, "loss"), want);
  EXPECT_THAT(read_file(RunFolder(encoding.run.folder).log(0), kMaxBytes), HasSubstr("warning  skipped: "));
}

TEST_F(LatentRuns, KeepTheirLatentsInTheirFolderAndDrawSamples) {
  const run::Config c =
      latent_config("samples", {"--data.latents=auto", "--training.steps=2", "--training.sample_every=1",
                                "--training.sample_prompt=a star", "--training.evaluate_every=0", "--parallel.data=2"});
  train(c);
  EXPECT_FALSE(files_of(c.run.folder + "/latents").empty());
  size_t pictures = 0;
  for (const auto& [path, time] : files_of(c.run.folder + "/samples")) {
    EXPECT_EQ(data::decode_picture(read_file(path, kMaxBytes), path).width, 16);
    ++pictures;
  }
  EXPECT_EQ(pictures, 4u);
  const std::string log = read_file(RunFolder(c.run.folder).log(0), kMaxBytes);
  EXPECT_THAT(log, HasSubstr("samples also need: text encoder frozen parameters "));
}

/// The needs against what the parts take when they are loaded.
TEST_F(LatentRuns, NameTheMemoryOfTheirSamples) {
  const run::Program known = program();
  const run::Config c = latent_config("needs");
  const run::ResolvedModel resolved = run::resolve_model(c, known);
  const auto& objective = dynamic_cast<const run::DiffusionObjective&>(*resolved.objective.objective);
  run::PipelineSource source = objective.pipeline();
  source.image_encoder = {"clip-vision-tiny", 1};
  const std::vector<train::MemoryNeed> needs = needs_of_parts(source, known);
  ASSERT_EQ(needs.size(), 4u);
  EXPECT_EQ(needs[3].what, "decoding");
  EXPECT_GT(needs[3].bytes, int64_t{8} * 16 * 16 * 8) << "the largest tensor of the decoder, in fp64";
  comm::run_ranks(1, [&](comm::World& world) {
    const memory::Account account;
    const PipelineParts parts(source, world, at::kCPU, {}, known);
    EXPECT_EQ(needs[0].bytes + needs[1].bytes + needs[2].bytes, account.usage().total) << train::to_string(needs);
  });
}

// Cells of latents of 8 x 8, and of 16 x 8.
TEST_F(LatentRuns, CountTheWorkOfEachSize) {
  const run::ResolvedModel model = run::resolve_model(latent_config("work"), program());
  const run::ResolvedModel wide = run::resolve_model(latent_config("work", {"--data.size=32,16"}), program());
  const run::Objective &one = *model.objective.objective, &two = *wide.objective.objective;
  for (const run::Objective* objective : {&one, &two}) {
    EXPECT_EQ(objective->tokens(one.example(3), model.shape), 3 * 64);
    EXPECT_EQ(objective->tokens(two.example(3), wide.shape), 3 * 128);
  }
  train::SampleFlops flops(model.shape, one);
  EXPECT_EQ(flops.of(two.example(3)), run::costs_of(wide.shape, two).sum());
}

TEST_F(LatentRuns, RefuseKeysThatDoNotFit) {
  write_pictures("pictures", 6, 16, 16);
  const std::string path = "--data.path=" + (folder_ / "pictures");
  const auto refused = [&](const Flags& flags) {
    return test::thrown_message([&] { train(latent_config("bad", flags)); });
  };
  EXPECT_THAT(refused({"--data.size=17,16"}), HasSubstr("the nearest is [18, 16]"));
  EXPECT_THAT(refused({path, "--data.size=16,16", "--data.buckets=5"}), HasSubstr("buckets"));
  EXPECT_THAT(refused({path, "--data.prior=" + (folder_ / "pictures"), "--training.batch_size=5"}),
              HasSubstr("must be even: got 5"));
  EXPECT_THAT(refused({path, "--data.size=16,16", "--data.buckets=4", "--training.cuda_graph=true"}),
              HasSubstr("cuda_graph needs batches of one size"));
  EXPECT_THAT(refused({"--vae.from=none"}), HasSubstr("channels must be 3"));
  EXPECT_THAT(refused({"--model.text=32"}), HasSubstr("clip-text-tiny"));
}

TEST_F(LatentRuns, RefuseOtherClassesBeforeAnyPictureIsEncoded) {
  const std::string latents = folder_ / "latents";
  const run::Config c = config("classes", {"--vae.from=" + vae(), "--model.channels=4", "--model.classes=12",
                                           "--data.size=16,16", "--data.latents=" + latents});
  EXPECT_THAT(test::thrown_message([&] { train(c); }), HasSubstr("got 10 for 12 classes"));
  EXPECT_FALSE(std::filesystem::exists(latents) && !std::filesystem::is_empty(latents));
}

}  // namespace
}  // namespace colossal::diffusion::latent_runs_test
