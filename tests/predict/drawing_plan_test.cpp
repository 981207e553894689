// Plans of drawings from shapes alone.
#include "colossal/predict/drawing_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/safetensors.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/memory/account.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/image_encoder.h"
#include "colossal/models/registry.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/plan/profile.h"
#include "colossal/run/data.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/program.h"
#include "predict/small_runs.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::predict::drawing_plan_test {
namespace {

run::PipelineSource pipeline_of(const std::string& preset) {
  const run::Config config = run::read_given_config("", {"--model.name=" + preset}).config;
  const run::ResolvedModel model = run::resolve_model(config, run::built_in());
  run::PipelineSource source = dynamic_cast<const run::DiffusionObjective&>(*model.objective.objective).pipeline();
  source.model = preset;
  return source;
}

DrawingPlan planned(const std::string& preset, const DrawnWork& work, const DrawnLoading& loading,
                    const plan::Profile& profile) {
  return plan_drawing(pipeline_of(preset), work, loading, profile, run::built_in());
}
DrawingPlan planned(const std::string& preset, const DrawnWork& work, const DrawnLoading& loading = {},
                    const char* cluster = "rtx-3060") {
  return planned(preset, work, loading, plan::find_profile(cluster));
}

/// A machine that its ranks share.
plan::Profile machine() {
  plan::Profile profile = small_cluster(kAmple);
  profile.device.shared = true;
  profile.disk = {.read = 1e7, .write = 1e7};
  return profile;
}

/// The most bytes of any rank, as accounts of tensors count them.
struct Measured {
  int64_t kept = 0;                ///< of the parts that are loaded
  int64_t text = 0, decoding = 0;  ///< beside these, while they read a caption and decode a picture
};

/// Measures ranks that share the rows of a picture of that many cells.
Measured measured(const run::PipelineSource& source, int ranks, bool streams, const ops::PictureSize& cells) {
  Measured most;
  std::mutex mutex;
  comm::run_ranks(ranks, [&](comm::World& world) {
    comm::Mesh mesh(world, {comm::Mesh::batch("data", ranks)});
    memory::Account account;
    diffusion::PipelineParts parts(source, world, at::kCPU, {{}, streams}, run::built_in());
    const int64_t kept = account.usage().total;
    const auto peak_of = [&](const auto& work) {
      account.reset_peaks();
      work();
      return account.usage().peak_total - kept;
    };
    const int64_t text = peak_of([&] { parts.told("a star", /*clip_skip=*/0); }),
                  decoding = peak_of([&] {
                    parts.pixels(at::zeros({1, source.sizes.channels, cells.height, cells.width}), false, &mesh.all());
                  });
    const std::lock_guard lock(mutex);
    most = {std::max(most.kept, kept), std::max(most.text, text), std::max(most.decoding, decoding)};
  });
  return most;
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
  EXPECT_TRUE(plan.fits) << to_text(plan);
  EXPECT_EQ(plan.sent, 0);
  EXPECT_GT(plan.seconds, 25 * plan.step_seconds);
  const nlohmann::json json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json["parts"][2]["name"], "decoder");
  EXPECT_THAT(to_text(plan), testing::HasSubstr("fits rtx-3060"));
}

TEST(DrawingPlan, CountsAControlNetWithinTheModel) {
  run::PipelineSource source = pipeline_of("sd-1.5");
  const models::ModelShape shape = run::find_source("sd-1.5", run::built_in()).shape;
  const test::TemporaryFolder folder;  // of its config alone
  folder.write("config.json",
               models::control_to_diffusers(models::with_control(shape, {.channels = {16, 32, 96, 256}})).dump());
  const DrawnWork work{.cells = {64, 64}};
  const auto plan = [&] {
    return plan_drawing(source, work, {.dtype = at::kBFloat16}, plan::find_profile("rtx-3060"), run::built_in());
  };
  const DrawingPlan alone = plan();
  diffusion::add_parts(source, {.control = folder.path() + ":0.8"}, run::built_in());
  const DrawingPlan both = plan();
  EXPECT_EQ(both.parts.at(1).weights - alone.parts.at(1).weights, 2 * 361'279'120);
  EXPECT_GT(both.parts.at(1).peak_bytes - both.parts.at(1).weights,
            alone.parts.at(1).peak_bytes - alone.parts.at(1).weights);
  EXPECT_GT(both.step_seconds, 1.2 * alone.step_seconds);
  EXPECT_EQ(both.parts.at(2).peak_bytes, alone.parts.at(2).peak_bytes);
  source.factor = 4;
  EXPECT_THAT(test::thrown_message([&] { diffusion::add_parts(source, {.control = folder.path()}, run::built_in()); }),
              testing::HasSubstr("must read 4 pixels a side for each cell, as the autoencoder does: got 8"));
}

TEST(DrawingPlan, CountsAnIpAdapterAndItsEncoder) {
  const char *preset = "sd-1.5-tiny", *encoder = "clip-vision-tiny";
  run::PipelineSource source = pipeline_of(preset);
  const models::ModelShape pictures = run::find_source(encoder, run::built_in()).shape,
                           whole = models::with_image_prompt(
                               run::find_source(preset, run::built_in()).shape,
                               {.features = models::image_encoder_of(pictures).features, .tokens = 4});
  nn::Parameters parameters({}, {.device = at::kMeta, .without_memory = true});
  nn::SerialLayers layers(parameters);
  models::make_model(whole, layers);
  const test::TemporaryFolder folder;  // of an adapter of zeros, and of the encoder's config alone
  folder.write("image_encoder/config.json", pictures.architecture->to_json()(pictures).dump());
  std::vector<checkpoint::TensorEntry> entries;
  int64_t added = 0;
  for (const nn::ExternalName& name : models::image_prompt_names(whole)) {
    std::vector<int64_t> sizes = parameters.at(name.ours).spec.shape;
    added += parameters.at(name.ours).spec.numel();
    sizes[0] /= static_cast<int64_t>(name.parts.size());
    for (const nn::ExternalRows& part : name.parts)
      entries.push_back({.name = part.name, .dtype = at::kFloat, .shape = sizes});
  }
  checkpoint::sort_entries(entries);
  checkpoint::SafetensorsWriter writer(folder / "ip-adapter.safetensors", entries);
  for (const checkpoint::TensorEntry& entry : entries) writer.write(at::zeros(entry.shape));
  writer.finish();
  const auto plan = [&] {
    return plan_drawing(source, {.cells = {8, 8}}, {}, plan::find_profile("rtx-3060"), run::built_in());
  };
  const DrawingPlan alone = plan();
  diffusion::add_parts(source, {.image_prompt = folder.path() + ":0.8"}, run::built_in());
  const DrawingPlan both = plan();
  ASSERT_EQ(both.parts.size(), alone.parts.size() + 1);
  EXPECT_EQ(both.parts.at(1).name, "image encoder");
  EXPECT_GT(both.parts.at(1).peak_bytes, both.parts.at(1).weights);
  EXPECT_EQ(both.parts.at(2).weights - alone.parts.at(1).weights, 4 * added);
  EXPECT_GT(both.step_seconds, alone.step_seconds);
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

// The parts beside the model: the text encoder stays unless weights stream, and ranks share the rows of the picture.
// Buffers that operators and transports take for themselves are missing in plans.
TEST(DrawingPlan, HasTheMemoryOfTheDrawing) {
  constexpr ops::PictureSize kCells{32, 24};
  const auto near = [](int64_t bytes) { return testing::AllOf(testing::Ge(bytes * 6 / 10), testing::Le(bytes)); };
  for (const bool streams : {false, true}) {
    const int ranks = streams ? 1 : 2;
    DrawnLoading loading;
    loading.layout.data = ranks;
    if (streams) loading.memory.host = int64_t{1} << 30;
    const DrawingPlan plan = planned("sd-1.5-tiny", {.cells = kCells, .is_guided = false}, loading, machine());
    const Measured real = measured(pipeline_of("sd-1.5-tiny"), ranks, streams, kCells);
    const DrawnPart &text = plan.parts.at(0), &model = plan.parts.at(1), &decoder = plan.parts.at(2);
    const int64_t of_text = text.peak_bytes - (streams ? 0 : text.weights),
                  of_decoding = decoder.peak_bytes - decoder.weights;
    EXPECT_EQ(real.kept, decoder.weights + (streams ? 0 : text.weights));
    EXPECT_THAT(of_text, near(real.text)) << streams;
    EXPECT_THAT(of_decoding, near(real.decoding)) << streams;
    EXPECT_EQ(plan.peak_bytes,
              real.kept + model.weights + std::max({of_text, of_decoding, model.peak_bytes - model.weights}));
  }
}

TEST(DrawingPlan, SharesRowsAmongRanksWithoutPictures) {
  const auto decoder = [](int64_t count) {
    DrawnLoading loading;
    loading.layout.data = 2;
    return planned("sd-1.5-tiny", {.cells = {16, 16}, .count = count, .is_guided = false}, loading, machine())
        .parts.at(2);
  };
  EXPECT_LT(decoder(1).peak_bytes, decoder(3).peak_bytes) << "only the third is shared";
}

TEST(DrawingPlan, HoldsWeightsInTheBudgetOfTheHost) {
  const DrawnWork work{.cells = {16, 16}};
  DrawnLoading streamed;
  streamed.memory.host = int64_t{3} << 20;
  streamed.memory.disk = "disk";
  const DrawingPlan all = planned("dit-tiny", work, {}, machine()),
                    some = planned("dit-tiny", work, streamed, machine());
  EXPECT_LE(some.parts.at(0).weights, streamed.memory.host);
  EXPECT_GT(some.step_seconds, all.step_seconds) << "the disk is read";
  streamed.memory.device = streamed.memory.host;
  EXPECT_THROW(planned("dit-tiny", work, streamed, machine()), Error) << "the machine has no other memory";
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

/// Returns a pipeline of an STDiT3 alone.
run::PipelineSource clips_of(const std::string& preset) {
  const models::ModelShape shape = models::built_in().resolve({.name = preset});
  return {.model = preset, .sizes = models::denoiser_of(shape), .factor = 8};
}

DrawnLoading dsp(int64_t ranks) {
  DrawnLoading loading{.dtype = at::kBFloat16};
  loading.layout.sequence = {ranks, "dsp"};
  return loading;
}

// 16 seconds of 720p: 408 frames, which Open-Sora 1.2's autoencoder makes 120 of 45 x 80 patches.
TEST(DrawingPlan, CountsWhatSixteenSecondsOf720pSwitch) {
  run::PipelineSource source = clips_of("stdit3-xl-2");
  source.vae = "open-sora-vae-1.2";
  const models::AutoencoderSizes vae = models::autoencoder_of(models::built_in().resolve({.name = source.vae}));
  const DrawnWork work{
      .cells = {720 / 8, 1280 / 8}, .frames = 408, .latents = models::latent_frames(vae, 408), .passes = 30};
  const DrawingPlan plan = plan_drawing(source, work, dsp(8), plan::find_profile("h100-8x"), run::built_in());
  EXPECT_EQ(plan.tokens, 432'000);
  EXPECT_EQ(plan.switched, 24'385'536'000.0);
  EXPECT_TRUE(plan.fits) << to_text(plan);
  EXPECT_LT(plan.parts.back().peak_bytes, int64_t{8} << 30) << "frames of 720p are decoded by rows";
  // Besides, an all_reduce of the end, whose patches have 2 x 2 x 8 numbers, sends 2 (n - 1) times these.
  EXPECT_EQ(plan.sent, 2 * (plan.switched + static_cast<double>(2 * 7 * plan.tokens * 32))) << "a guided step";
  const nlohmann::json json = nlohmann::json::parse(to_json(plan));
  EXPECT_EQ(json.at("tokens"), 432'000);
  EXPECT_EQ(json.at("switched"), 24'385'536'000);
  EXPECT_THAT(to_text(plan), testing::HasSubstr("432000 tokens, and 24385536000 elements that switches"));
}

// Two switches a pair of blocks, of frames or places that the ranks divide.
TEST(DrawingPlan, CountsTheSwitchesOfEachClip) {
  const run::PipelineSource source = clips_of("stdit3-tiny");
  const double hidden = 96, pairs = 2;
  for (const int64_t ranks : {2, 4}) {
    const DrawnWork work{.cells = {16, 16}, .frames = 4, .latents = 4, .count = 2, .at_once = 2, .is_guided = false};
    const DrawingPlan plan = plan_drawing(source, work, dsp(ranks), plan::find_profile("h100-8x"), run::built_in());
    const auto n = static_cast<double>(ranks);
    EXPECT_EQ(plan.tokens, 4 * 16);
    EXPECT_EQ(plan.switched, (n - 1) / n * static_cast<double>(plan.tokens) * hidden * 2 * pairs) << ranks;
  }
  EXPECT_EQ(
      plan_drawing(source, {.cells = {16, 16}, .frames = 4, .latents = 4}, {}, machine(), run::built_in()).switched, 0);
}

TEST(DrawingPlan, DecodesClipsInChunksOfTime) {
  run::PipelineSource source = pipeline_of("sd-1.5-tiny");  // its decoder alone counts
  source.vae = "open-sora-vae-tiny";
  const auto decoder = [&](int64_t frames) {
    return plan_drawing(source, {.cells = {8, 8}, .frames = frames, .is_guided = false}, {}, machine(),
                        run::built_in());
  };
  const DrawingPlan few = decoder(5), many = decoder(50);
  EXPECT_EQ(few.parts.at(2).peak_bytes, many.parts.at(2).peak_bytes) << "one chunk is in memory";
  EXPECT_GT(many.seconds, few.seconds);
}

TEST(DrawingPlan, DecodesClipsFrameByFrame) {
  const run::PipelineSource source = pipeline_of("sd-1.5-tiny");  // its decoder alone counts
  const auto decoder = [&](int64_t frames) {
    return plan_drawing(source, {.cells = {16, 16}, .frames = frames, .is_guided = false}, {}, machine(),
                        run::built_in());
  };
  const DrawingPlan few = decoder(2), many = decoder(20);
  EXPECT_EQ(few.parts.at(2).peak_bytes, many.parts.at(2).peak_bytes) << "one frame is in memory";
  EXPECT_GT(many.seconds, few.seconds);
}

// Models that read several text encoders have each of them in memory; that of a whole caption needs no values.
TEST(DrawingPlan, CountsEachTextEncoder) {
  for (const auto& [preset, encoders] : {std::pair{"sdxl-tiny", 2}, {"sd3-tiny", 3}, {"flux-tiny", 2}}) {
    const DrawingPlan plan = planned(preset, {.cells = {8, 8}, .passes = 2});
    std::vector<std::string> names, wanted{"text encoder", "text encoder 2"};
    if (encoders == 3) wanted.emplace_back("text encoder 3");
    for (const char* name : {"model", "decoder"}) wanted.emplace_back(name);
    for (const DrawnPart& part : plan.parts) names.push_back(part.name);
    EXPECT_EQ(names, wanted) << preset;
    for (const DrawnPart& part : plan.parts) EXPECT_GT(part.weights, 0) << preset << " " << part.name;
  }
}

}  // namespace
}  // namespace colossal::predict::drawing_plan_test
