// Runs of SDXL, Stable Diffusion 3 and FLUX in small: what they learn, what they draw, and the folders that are
// written.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/comm/mesh.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/diffusion/exported_pipeline.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/models/caption_parts.h"
#include "colossal/models/denoiser.h"
#include "colossal/nn/batch_step.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"
#include "colossal/run/objectives/diffusion/guidance_ranks.h"
#include "colossal/run/saved_model.h"
#include "diffusion/latent_runs.h"
#include "support/layouts.h"
#include "support/thrown_message.h"

namespace colossal::diffusion::large_models_test {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
using Flags = std::vector<std::string>;

constexpr const char* kPresets[] = {"sdxl-tiny", "sd3-tiny", "flux-tiny"};

class LargeModels : public LatentRuns {
 protected:
  /// A short run of a preset, half of whose rows are told the empty caption.
  run::Config large_config(const std::string& preset, const std::string& name, const Flags& flags = {}) const {
    const Flags own{"--run.folder=" + (folder_ / name),
                    "--run.device=cpu",
                    "--run.matmul=mkl",
                    "--precision.mode=fp64",
                    "--model.name=" + preset,
                    "--vae.from=" + vae(),
                    "--data.path=builtin-shapes:16",
                    "--data.held_out=0.2",
                    "--data.latents=" + (folder_ / (preset + "-latents")),
                    "--diffusion.min_snr=0",
                    "--diffusion.guidance=0",
                    "--diffusion.drop_label=0.5",
                    "--optimizer.warmup_steps=0",
                    "--optimizer.learning_rate=0.01",
                    "--training.batch_size=4",
                    "--training.steps=2",
                    "--training.ema=0",
                    "--training.sample_every=0",
                    "--training.evaluate_batches=1",
                    "--training.evaluate_every=2"};
    return run::read_given_config(test::source_dir() + "/examples/sd_finetune.toml", test::joined(own, flags)).config;
  }
  std::vector<double> course(const run::Config& c) const {
    train(c);
    std::vector<double> numbers;
    for (const char* name : {"loss", "grad_norm", "eval_loss"})
      for (const double value : metric(c, name)) numbers.push_back(value);
    return numbers;
  }
  /// Loads the pipeline of a run and calls `use` with a drawer.
  static void load(const std::string& folder, const std::function<void(const run::PipelineSource&, Drawer&)>& use) {
    const run::Program known = program();
    const run::PipelineSource source = find_pipeline(folder, known, "draw");
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, run::axes_with_guidance({}, 1)), own = mesh.without({run::kGuidanceAxis});
      const run::SavedModel saved = run::load_model(folder, own, {}, at::kCPU, {.tokenizer = "none"}, known);
      PipelineParts parts(source, world, at::kCPU, {}, known);
      Drawer drawer(source, *saved.model, parts, mesh, "");
      use(source, drawer);
    });
  }
  static std::string png(Drawer& drawer, const DrawOptions& options) {
    std::string file;
    drawer.draw(options, {}, [&](const DrawnPicture& one) { file = one.png; });
    return file;
  }
};

// Zeros take the place of what SDXL reads of an empty caption, whether a step or a cache has its states.
TEST_F(LargeModels, LearnTheSameWithACacheOrWithoutOne) {
  for (const char* preset : kPresets) {
    const std::vector<double> cached = course(large_config(preset, "cached"));
    ASSERT_THAT(cached, SizeIs(2 + 2 + 1)) << preset;
    EXPECT_EQ(course(large_config(preset, "none", {"--data.latents=none"})), cached) << preset;
  }
}

TEST_F(LargeModels, HaveTheCourseOfOneProcessOnTwoRanks) {
  const std::vector<double> want = course(large_config("flux-tiny", "one"));
  for (const Flags& layout : {Flags{"--parallel.data=2", "--parallel.zero=3"}, Flags{"--parallel.tensor.size=2"},
                              Flags{"--parallel.sequence.size=2", "--parallel.sequence.mode=ring"}})
    test::expect_near(course(large_config("flux-tiny", "two", layout)), want, testing::PrintToString(layout));
}

// Adapters have gradients on a base that has learned; before, its last matrix is 0.
TEST_F(LargeModels, LearnAdapters) {
  for (const char* preset : {"sdxl-tiny", "flux-tiny"}) {
    const run::Config base =
        large_config(preset, "base",
                     {"--training.steps=5", "--training.evaluate_batches=0", "--optimizer.final_learning_rate=0.01"});
    train(base);
    Flags flags{"--adapter.kind=lora", "--adapter.rank=2", "--training.evaluate_batches=0"};
    const Flags from{"--model.name=", "--model.from=" + base.run.folder};
    const run::Config c = large_config(preset, "lora", test::joined(flags, from));
    train(c);
    const std::vector<double> norms = metric(c, "grad_norm");
    ASSERT_THAT(norms, SizeIs(2)) << preset;
    EXPECT_GT(norms.front(), 0) << preset;
    flags.push_back("--adapter.text_encoder=true");
    EXPECT_THAT(test::thrown_message([&] { train(large_config(preset, "text", flags)); }),
                HasSubstr("adapter.text_encoder needs"));
  }
}

// One pass a step is enough for FLUX dev, which is told the weight of guidance; others have two.
TEST_F(LargeModels, DrawWithGuidance) {
  for (const char* preset : kPresets) {
    const run::Config c =
        large_config(preset, "run", {"--optimizer.learning_rate=0.05", "--training.evaluate_batches=0"});
    train(c);
    load(c.run.folder, [&](const run::PipelineSource& source, Drawer& drawer) {
      DrawOptions options{.prompt = "a star", .seed = 3, .steps = 2, .guidance = 1};
      const std::string plain = png(drawer, options);
      options.guidance = 4;
      EXPECT_NE(png(drawer, options), plain) << preset;
      const bool is_told = std::string(preset) == "flux-tiny";
      EXPECT_EQ(run::has_second_pass(source, 4), !is_told) << preset;
      EXPECT_EQ(parts_of_drawing(source, options).guidance, is_told ? 1 : 4) << preset;
      options.negative = "a heart";
      const std::string skipped =
          test::thrown_message([&] { Drawer::check(source, {.prompt = "a", .clip_skip = 1}, {}); });
      EXPECT_EQ(skipped.empty(), std::string(preset) != "flux-tiny") << skipped;
      const auto refusal = test::thrown_message([&] { Drawer::check(source, options, {}); });
      if (is_told)
        EXPECT_THAT(refusal, HasSubstr("told the weight of guidance"));
      else
        EXPECT_EQ(refusal, "");
      options.negative.clear();
      options.size = "32x16";
      EXPECT_NE(png(drawer, options), "") << "another size";
    });
  }
}

// One step of a flow from noise is the noise minus what the model predicts.
TEST_F(LargeModels, TellTheHeightBeforeTheWidthThatIsDrawn) {
  const run::Config c = large_config(
      "sdxl-tiny", "run",
      {"--training.evaluate_batches=0", "--diffusion.target=flow", "--diffusion.drop_label=0", "--training.steps=3"});
  train(c);
  comm::run_ranks(1, [&](comm::World& world) {
    comm::Mesh mesh(world, {});
    const run::SavedModel saved = run::load_model(c.run.folder, mesh, {}, at::kCPU, {.tokenizer = "none"}, program());
    const noise::SamplerPlan plan =
        run::plan_of(find_pipeline(c.run.folder, program(), "draw"), {.sampler = "flow", .steps = 1});
    const at::Tensor start = at::arange(4 * 4 * 12, at::kDouble).sin().view({1, 4, 4, 12}),
                     text = at::ones({1, 7, 96}, at::kDouble), pooled = at::ones({1, 24}, at::kDouble);
    const tensor::Batch told = models::caption_batch(text, pooled);
    const at::Tensor drawn = draw(
        *saved.model, plan, {.told = told, .seeds = {1}, .size = {4, 12}, .guidance = 1, .factor = 2, .start = start});
    const auto predicted = [&](const std::vector<double>& sizes) {
      using tensor::Dim;
      tensor::Batch batch = told;
      batch.add("noised", {start, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
      batch.add("times", {at::full({1}, plan.steps.front().time, at::kDouble), {Dim::Row}});
      batch.add("sizes", {at::tensor(sizes, at::kDouble).unsqueeze(0), {Dim::Row, Dim::Other}});
      const nn::ForwardContext step = nn::step_of(batch);
      const models::Model& model = saved.model->decoding_model();
      const models::Stage all{0, static_cast<int64_t>(model.blocks.size())};
      const at::NoGradGuard no_grad;
      return models::predicted_picture(model.shape, models::run_stage(model, all, {}, step)[0], batch);
    };
    EXPECT_TRUE(at::allclose(drawn, start - predicted({8, 24, 0, 0, 8, 24}), 1e-9, 1e-9));
    EXPECT_FALSE(at::allclose(drawn, start - predicted({24, 8, 0, 0, 24, 8}), 1e-9, 1e-9));
  });
}

TEST_F(LargeModels, RefuseGuidanceThatHasNoInput) {
  run::PipelineSource schnell;
  schnell.sizes = models::denoiser_of(models::built_in().resolve({.name = "flux-schnell"}));
  schnell.keys = run::completed({}, {.target = "flow", .schedule = "linear", .guidance = 1});
  schnell.sampler.sampler = "flow";
  EXPECT_THAT(test::thrown_message([&] { Drawer::check(schnell, {.prompt = "a", .guidance = 3}, {}); }),
              HasSubstr("learned to draw without it and has no input for it: got 3"));
  EXPECT_EQ(test::thrown_message([&] { Drawer::check(schnell, {.prompt = "a"}, {}); }), "");
  EXPECT_THAT(test::thrown_message([&] { Drawer::check(schnell, {.prompt = "a", .rescale = 0.5}, {}); }),
              HasSubstr("rescale needs a second pass"));
  EXPECT_THAT(test::thrown_message([&] { run::check_guidance_ranks(2, 1); }), HasSubstr("one pass a step"));
}

// The table of Stable Diffusion 3 has the positions of 16 x 16 patches, each of 2 cells of 4 pixels.
TEST_F(LargeModels, RefuseSizesBeyondTheTableOfPositions) {
  run::PipelineSource source = run::pipeline_of_run(run::read_given_config("", {"--model.name=sd3-tiny"}).config,
                                                    run::OwnTables({{run::kDiffusion, run::DiffusionKeys{}},
                                                                    {run::kVae, run::VaeKeys{}},
                                                                    {run::kTextEncoder, run::TextEncoderKeys{}}}),
                                                    models::built_in().resolve({.name = "sd3-tiny"}));
  source.model = "sd3-tiny";
  const auto refusal = [&](const char* size) {
    return test::thrown_message([&] { Drawer::check(source, {.prompt = "a", .size = size}, {}); });
  };
  EXPECT_EQ(refusal("128x64"), "");
  EXPECT_THAT(refusal("64x136"),
              HasSubstr("must be at most 128 pixels, for which the model has positions: got 64x136"));
  // A model of a user's own program is not refused as unknown by the check of sizes.
  folder_.write("own/config.json", R"({"_class_name": "OwnTransformer2DModel"})");
  source.model = folder_ / "own";
  EXPECT_EQ(refusal("128x64"), "");
}

// The index names the class of each part. Captions of bytes have no tokenizer of diffusers.
TEST_F(LargeModels, WritePipelines) {
  const std::pair<const char*, const char*> classes[] = {{"sdxl-tiny", "StableDiffusionXLPipeline"},
                                                         {"sd3-tiny", "StableDiffusion3Pipeline"},
                                                         {"flux-tiny", "FluxPipeline"}};
  for (const auto& [preset, class_name] : classes) {
    const run::Config c = large_config(preset, "run", {"--training.steps=1", "--training.evaluate_batches=0"});
    train(c);
    const std::string out = folder_ / preset;
    comm::run_ranks(1, [&](comm::World& world) {
      comm::Mesh mesh(world, {});
      const run::SavedModel saved = run::load_model(c.run.folder, mesh, {}, at::kCPU, {.tokenizer = "none"}, program());
      const auto objective = objective_of_run(c.run.folder, program(), "export");
      std::filesystem::create_directories(out);
      export_pipeline(out, *saved.model, *objective, mesh, at::kFloat, {}, program());
    });
    const nlohmann::json index = nlohmann::json::parse(read_file(out + "/model_index.json", 1 << 16));
    EXPECT_EQ(index.at("_class_name"), class_name);
    const nlohmann::json scheduler =
        nlohmann::json::parse(read_file(out + "/scheduler/scheduler_config.json", 1 << 16));
    for (const char* part : {"text_encoder", "text_encoder_2"}) {
      const nlohmann::json config = nlohmann::json::parse(read_file(concat(out, "/", part, "/config.json"), 1 << 16));
      EXPECT_EQ(config.at("architectures").at(0), index.at(part).at(1)) << preset;
      EXPECT_TRUE(index.at(concat("tokenizer", std::string(part).substr(12))).at(0).is_null());
    }
    if (std::string(preset) == "sdxl-tiny") {
      EXPECT_EQ(index.at("force_zeros_for_empty_prompt"), true);
    }
    if (std::string(preset) == "sd3-tiny") {
      EXPECT_EQ(scheduler.at("shift"), 3);
    }
    if (std::string(preset) == "flux-tiny") {
      EXPECT_EQ(scheduler.at("use_dynamic_shifting"), true);
    }
  }
}

// The numbers of SDXL's autoencoder overflow in fp16.
TEST_F(LargeModels, ComputeTheAutoencoderOfSdxlInFp32InPlaceOfFp16) {
  run::PipelineSource source;
  source.vae = "autoencoder-kl-tiny";
  source.sizes = models::denoiser_of(models::built_in().resolve({.name = "sdxl-tiny"}));
  comm::run_ranks(1, [&](comm::World& world) {
    PipelineParts parts(source, world, at::kCPU, {{.dtype = at::kHalf}}, program());
    EXPECT_THAT(parts.take_notices(), testing::Contains(HasSubstr("computes in fp32")));
    source.sizes.sizes = 0;
    PipelineParts others(source, world, at::kCPU, {{.dtype = at::kHalf}}, program());
    EXPECT_THAT(others.take_notices(), SizeIs(0));
  });
}

}  // namespace
}  // namespace colossal::diffusion::large_models_test
