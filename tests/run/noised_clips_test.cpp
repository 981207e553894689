// Rows of noised clips: given frames, shifts by size, and what models of clips are told; the loss without given frames.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <cmath>

#include "colossal/base/checksum.h"
#include "colossal/base/config.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/denoiser.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/noised_samples.h"
#include "support/thrown_message.h"

namespace colossal::run::noised_clips_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kFrames = 4;

DiffusionKeys keys_of(const GivenFrames& given, const std::string& shift = "1") {
  return completed({.target = "flow", .shift = shift, .drop_label = 0.5, .given_frames = given},
                   {.target = "flow", .schedule = "linear", .guidance = 7});
}

NoisedOptions options_of(const DiffusionKeys& keys) {
  return {.keys = keys,
          .channels = 2,
          .height = 3,
          .width = 5,
          .text = 6,
          .tokens = 4,
          .frames = kFrames,
          .masks_text = true,
          .conditions = {{.name = models::kRate}},
          .shift = "open-sora-1",
          .factor = 8,
          .patch = 2};
}

at::Tensor clip() {
  return at::randn({2, kFrames, 3, 5}, at::detail::createCPUGenerator(3), at::TensorOptions(at::kFloat));
}

Told told() {
  tensor::Batch rate;
  rate.add(models::kRate, {at::full({1}, 24, at::kFloat), {tensor::Dim::Row}});
  return {.caption = models::caption_batch(at::arange(24, at::kFloat).view({1, 4, 6}), {},
                                           at::tensor({1, 1, 1, 0}, at::kLong).unsqueeze(0)),
          .conditions = rate};
}

tensor::Batch filled(const NoisedOptions& options, uint64_t seed) {
  tensor::Batch batch = noised_batch(1, options);
  Noiser(options).fill(clip(), told(), 0, seed, batch, 0);
  return batch;
}

double item(const tensor::Batch& batch, const char* field) { return batch.at(field)[0].item<double>(); }

TEST(NoisedClips, KeepGivenFramesCleanInTheirShareOfRows) {
  const NoisedOptions options = options_of(keys_of({.first = 0.3, .last = 0.2, .random = 0.4}));
  int none = 0, first = 0, last = 0, others = 0;
  constexpr int kRows = 300;
  for (uint64_t seed = 0; seed < kRows; ++seed) {
    const tensor::Batch batch = filled(options, seed);
    const at::Tensor given = batch.at(kGiven)[0];
    const auto count = given.sum().item<int64_t>();
    ASSERT_LT(count, kFrames) << "one frame at least is noised";
    for (int64_t frame = 0; frame < kFrames; ++frame) {
      const bool is_clean = at::equal(batch.at(kNoised)[0].select(1, frame), clip().select(1, frame));
      EXPECT_EQ(is_clean, given[frame].item<int64_t>() == 1) << seed;
    }
    const bool is_first = given[0].item<int64_t>() == 1, is_last = given[kFrames - 1].item<int64_t>() == 1;
    ++(count == 0 ? none : count == 1 && is_first ? first : count == 1 && is_last ? last : others);
  }
  EXPECT_GE(first, 0.3 * kRows - 40);
  EXPECT_GE(last, 0.2 * kRows - 40);
  EXPECT_LE(none, 0.2 * kRows);
  EXPECT_GE(others, 0.2 * kRows);
}

TEST(NoisedClips, HaveNoGivenFramesIfHeldOutOrOfOneFrame) {
  NoisedOptions options = options_of(keys_of({.first = 1}));
  EXPECT_EQ(filled(options, 1).at(kGiven).sum().item<int64_t>(), 1);
  options.is_held_out = true;
  EXPECT_EQ(filled(options, 1).at(kGiven).sum().item<int64_t>(), 0);
  options.is_held_out = false;
  options.frames = 1;
  tensor::Batch picture = noised_batch(1, options);
  Noiser(options).fill(clip().narrow(1, 0, 1), told(), 0, 1, picture, 0);
  EXPECT_EQ(picture.at(kGiven).sum().item<int64_t>(), 0);
  EXPECT_FALSE(noised_batch(1, options_of(keys_of({}))).find(kGiven).defined()) << "without shares there is no field";
}

TEST(NoisedClips, ShiftTimesByPixelsAndFrames) {
  const NoisedOptions plain = options_of(keys_of({})), shifted = options_of(keys_of({}, "auto"));
  const double shift = std::sqrt(24.0 * 40 / (512.0 * 512)) * std::sqrt(kFrames);
  for (const uint64_t seed : {1, 2, 3}) {
    const double t = item(filled(plain, seed), kTimes) / 1000;
    EXPECT_NEAR(item(filled(shifted, seed), kTimes), 1000 * noise::shifted(t, shift), 1e-3);
  }
}

TEST(NoisedClips, TellCaptionMaskAndRate) {
  const NoisedOptions options = options_of(keys_of({}));
  int untold = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const tensor::Batch batch = filled(options, seed);
    EXPECT_TRUE(at::equal(batch.at(kText), told().caption.at(kText))) << "also if it is dropped";
    EXPECT_TRUE(at::equal(batch.at(kTextMask), told().caption.at(kTextMask)));
    EXPECT_EQ(item(batch, models::kRate), 24);
    untold += static_cast<int>(item(batch, kUntold));
  }
  EXPECT_NEAR(untold, 50, 20);
}

TEST(NoisedClips, CompleteGivenFramesOfRowsThatAStepEncodes) {
  NoisedOptions options = options_of(keys_of({.first = 1}));
  const tensor::Batch want = filled(options, 5);
  options.unencoded = 8;
  options.id_tokens = {4};
  tensor::Batch batch = noised_batch(1, options);
  Told ids = told();
  ids.caption = models::told_batch(at::zeros({1, 4}, at::kLong)).with(kTextMask, told().caption.field(kTextMask));
  Noiser(options).fill(at::zeros_like(clip()), ids, 0, 5, batch, 0);
  EXPECT_EQ(batch.at(kPixels).sizes(), at::IntArrayRef({1, 3, kFrames, 24, 40}));
  const tensor::Batch complete = with_latents(batch, clip().unsqueeze(0), told().caption);
  for (const char* name : {kNoised, kTargets})
    EXPECT_TRUE(at::allclose(complete.at(name), want.at(name), 1e-6, 1e-6)) << name;
}

TEST(NoisedClips, ShowGivenFramesThatAreNoised) {
  NoisedOptions options = options_of(keys_of({}));
  const at::Tensor noised = filled(options, 5).at(kNoised);
  options = options_of(keys_of({.first = 1}));
  options.noises_given = true;
  const tensor::Batch batch = filled(options, 5);
  EXPECT_TRUE(at::equal(batch.at(kNoised), noised)) << "as if none were given";
  EXPECT_TRUE(at::equal(batch.at(kShown)[0].select(1, 0), clip().select(1, 0)));
  EXPECT_TRUE(batch.at(kShown).narrow(2, 1, kFrames - 1).eq(0).all().item<bool>());
  options.unencoded = 8;
  options.id_tokens = {4};
  tensor::Batch pixels = noised_batch(1, options);
  Told ids = told();
  ids.caption = models::told_batch(at::zeros({1, 4}, at::kLong)).with(kTextMask, told().caption.field(kTextMask));
  Noiser(options).fill(at::zeros_like(clip()), ids, 0, 5, pixels, 0);
  const tensor::Batch complete = with_latents(pixels, clip().unsqueeze(0), told().caption);
  for (const char* name : {kNoised, kTargets, kShown})
    EXPECT_TRUE(at::allclose(complete.at(name), batch.at(name), 1e-6, 1e-6)) << name;
}

TEST(DiffusionKeys, ReadGivenFramesFromATable) {
  DiffusionKeys keys;
  ConfigDocument::parse("target = \"flow\"\ngiven_frames = { first = 0.1, random = 0.2 }", "x.toml").read(keys);
  EXPECT_EQ(keys.given_frames, (GivenFrames{.first = 0.1, .random = 0.2}));
}

models::ModelShape latent_model() {
  return models::built_in().resolve(
      {.name = "stdit3-tiny",
       .own = models::own_keys({"channels=4", "frames=3", "height=4", "width=6", "patch=2", "spare_outputs=true"})});
}

DiffusionObjective objective_of(const models::ModelShape& shape, const GivenFrames& given) {
  const DiffusionKeys keys{.given_frames = given};
  return {Config(),
          OwnTables({{kDiffusion, keys}, {kVae, VaeKeys{"autoencoder-kl-tiny"}}, {kTextEncoder, TextEncoderKeys{}}}),
          shape};
}

TEST(DiffusionObjectives, LeaveGivenFramesOutOfTheLoss) {
  const models::ModelShape shape = latent_model();
  const DiffusionObjective objective = objective_of(shape, {.first = 0.5});
  tensor::Batch batch = objective.example(2).map(
      [](const tensor::Field& field) { return at::ones(field.tensor.sizes(), field.tensor.scalar_type()); });
  at::Tensor given = at::zeros({2, 3}, at::kLong);
  given[1][0] = 1;
  batch = batch.with(kGiven, {given, {tensor::Dim::Row, tensor::Dim::Other}});
  objective.check(batch);
  const at::Tensor end =
      at::randn({2, 6, 3, 2 * 2 * 8}, at::detail::createCPUGenerator(1), at::TensorOptions(at::kDouble));
  const nn::ForwardContext step = nn::step_of(batch);
  const at::Tensor loss = objective.loss({.shape = shape}, {end}, step);
  const at::Tensor errors = (models::predicted_picture(shape, end, batch) - 1).square();
  const at::Tensor want = errors[0].mean() + errors[1].narrow(1, 1, 2).mean();
  EXPECT_NEAR(loss.item<double>(), want.item<double>(), 1e-12);
}

TEST(DiffusionObjectives, HaveNoLossOfARowWhoseFramesAreAllGiven) {
  const models::ModelShape shape = latent_model();
  const DiffusionObjective objective = objective_of(shape, {.first = 0.5});
  tensor::Batch batch = objective.example(2).map(
      [](const tensor::Field& field) { return at::ones(field.tensor.sizes(), field.tensor.scalar_type()); });
  const at::Tensor end = at::ones({2, 6, 3, 2 * 2 * 8}, at::kDouble);
  EXPECT_EQ(objective.loss({.shape = shape}, {end}, nn::step_of(batch)).item<double>(), 0);
}

// A run that began before there were given frames goes on.
TEST(DiffusionKeys, HaveTheFingerprintOfRunsThatCouldNotGiveFrames) {
  DiffusionKeys keys = keys_of({});
  std::string first = to_toml(keys);
  first.erase(first.find("\n[given_frames]"));
  ASSERT_THAT(first, HasSubstr("guidance = 7"));
  EXPECT_EQ(keys.fingerprint(), checksum(first));
  keys.given_frames.last = 0.5;
  EXPECT_NE(keys.fingerprint(), checksum(first));
  const std::string last = keys.fingerprint();
  keys.given_frames = {.first = 0.5};
  EXPECT_NE(keys.fingerprint(), last);
}

TEST(DiffusionObjectives, RefuseGivenFramesThatCannotBe) {
  const auto refused = [](const models::ModelShape& shape, const GivenFrames& given) {
    return test::thrown_message([&] { objective_of(shape, given); });
  };
  EXPECT_EQ(refused(latent_model(), {.first = 0.5, .last = 0.5}), "");
  EXPECT_EQ(refused(latent_model(), {.first = 0.33, .last = 0.56, .random = 0.11}), "") << "1 but for rounding";
  EXPECT_THAT(refused(latent_model(), {.first = 0.5, .last = 0.3, .random = 0.4}),
              HasSubstr("the shares of given_frames must be 1 or less together: got 1.2"));
  EXPECT_THAT(refused(models::built_in().resolve({.name = "sd-1.5-tiny"}), {.first = 0.5}),
              HasSubstr("given_frames needs target = \"flow\": got epsilon"));
}

}  // namespace
}  // namespace colossal::run::noised_clips_test
