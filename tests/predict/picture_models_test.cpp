// Predicted steps of models of pictures: Stable Diffusion on a small card, and what recomputation keeps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/plan/cluster.h"
#include "colossal/plan/profile.h"
#include "colossal/predict/step.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/train/run_models.h"
#include "support/paths.h"

namespace colossal::predict::picture_models_test {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

plan::Prediction predicted(const std::string& example, std::vector<std::string> flags) {
  flags.push_back("--run.device=cuda");
  run::Config config = run::read_given_config(test::source_dir() + "/examples/" + example, flags).config;
  const run::Program program = run::built_in();
  run::complete_keys(config, program.objectives, run::tables_of(program.adapters));
  const run::ResolvedModel model = run::resolve_run(config, program);
  model.objective.write_keys(config);
  return predict_step({config, train::models_of(config, model)}, plan::Cluster(plan::find_profile("rtx-3060"), 1));
}

/// Steps of Stable Diffusion 1.5 on pictures of 512 pixels.
plan::Prediction fine_tuning(int64_t batch, std::vector<std::string> flags) {
  for (const char* flag : {"--model.name=sd-1.5", "--data.size=512,512", "--precision.mode=bf16", "--training.ema=0",
                           "--memory.recompute=block"})
    flags.emplace_back(flag);
  flags.push_back("--training.batch_size=" + std::to_string(batch));
  return predicted("sd_finetune.toml", flags);
}

/// Activations of a row grow by what is kept for backward and by the insides of one block: at most 31.7 M elements of
/// blocks' inputs and skips are kept, and all that attention without stored scores needs is 467.8 M.
TEST(PictureModels, KeepInputsOfBlocksUnderRecomputation) {
  const plan::Prediction one = fine_tuning(1, {}), two = fine_tuning(2, {});
  const int64_t row = two.roles.at(0).kinds.activations - one.roles.at(0).kinds.activations;
  EXPECT_GT(row, int64_t{2} * 31'000'000);
  EXPECT_LT(row, int64_t{2} * 110'000'000);
  EXPECT_EQ(one.parameters, 859'520'964);
}

TEST(PictureModels, StableDiffusionTrainsOnTwelveGigabytes) {
  const plan::Prediction prediction = fine_tuning(8, {"--memory.host=64GiB", "--memory.device=10GiB"});
  EXPECT_TRUE(prediction.fits) << prediction.limit;
  EXPECT_LE(prediction.peak_bytes, 10 * kGiB);
}

TEST(PictureModels, StableDiffusionTrainsWithinFourGigabytes) {
  const plan::Prediction prediction =
      fine_tuning(1, {"--memory.host=4GiB", "--memory.disk=scratch", "--memory.device=4GiB"});
  EXPECT_TRUE(prediction.fits) << prediction.limit;
  EXPECT_LE(prediction.peak_bytes, 4 * kGiB);
}

TEST(PictureModels, PlanClipsOfTheBatchesWithTheMostFrames) {
  const auto clips = [](const std::string& frames, const std::string& rows) {
    return predicted("stdit_clips.toml", {"--data.frames=" + frames, "--data.batch_sizes=" + rows});
  };
  const plan::Prediction all = clips("1,4,12", "32,16,4"), largest = clips("4", "16"), smaller = clips("12", "4");
  EXPECT_EQ(all.roles.at(0).kinds.activations, largest.roles.at(0).kinds.activations);
  EXPECT_EQ(all.step_seconds, largest.step_seconds);
  EXPECT_LT(smaller.roles.at(0).kinds.activations, largest.roles.at(0).kinds.activations);
}

/// Adapters of rank 16 of FLUX dev, with a picture a step.
plan::Prediction flux_adapters(std::vector<std::string> flags) {
  for (const char* flag : {"--model.name=flux-dev", "--data.path=builtin-shapes:20"}) flags.emplace_back(flag);
  return predicted("flux_lora.toml", flags);
}

TEST(PictureModels, FluxLearnsAdaptersOnACardOfTwelveGigabytes) {
  const plan::Prediction prediction = flux_adapters({"--adapter.base=nf4"});
  EXPECT_TRUE(prediction.fits) << prediction.limit;
  const plan::Prediction whole = flux_adapters({"--data.size=512,512"});
  EXPECT_FALSE(whole.fits) << "11.9 billion parameters in bf16";
}

TEST(PictureModels, FluxLearnsAdaptersWithinEightGigabytes) {
  const plan::Prediction prediction =
      flux_adapters({"--data.size=512,512", "--memory.device=8GiB", "--memory.host=32GiB"});
  EXPECT_TRUE(prediction.fits) << prediction.limit;
  EXPECT_LE(prediction.peak_bytes, 8 * kGiB);
}

TEST(PictureModels, ControlNetsLearnOnACardOfTwelveGigabytes) {
  const plan::Prediction prediction =
      predicted("controlnet_shapes.toml", {"--model.name=sd-1.5", "--data.size=512,512", "--precision.mode=bf16",
                                           "--memory.recompute=block", "--training.batch_size=4"});
  EXPECT_EQ(prediction.parameters, 859'520'964 + 361'279'120);
  EXPECT_TRUE(prediction.fits) << prediction.limit;
}

TEST(PictureModels, IncludeAutoencoders) {
  const plan::Prediction prediction =
      predicted("vae_shapes.toml", {"--model.name=autoencoder-kl", "--training.batch_size=1"});
  EXPECT_EQ(prediction.parameters, 83'653'863);
}

}  // namespace
}  // namespace colossal::predict::picture_models_test
