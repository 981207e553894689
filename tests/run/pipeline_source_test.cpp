// Pipelines before a weight is read: of presets, of folders of diffusers and of runs, and their samplers.
#include "colossal/run/objectives/diffusion/pipeline_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/model_source.h"
#include "colossal/run/program.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::pipeline_source_test {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PipelineSources : public testing::Test {
 protected:
  static models::ModelShape preset(const std::string& name, const std::vector<std::string>& own = {}) {
    return models::built_in().resolve({.name = name, .own = models::own_keys(own)});
  }
  /// Returns the pipeline of a run of a model.
  PipelineSource of_run(const models::ModelShape& shape, const DiffusionKeys& keys = {}, const std::string& vae = "",
                        const std::string& from = "") const {
    Config config;
    config.training.seed = 7;
    config.model.from = from;
    return pipeline_of_run(config, OwnTables({{kDiffusion, keys}, {kVae, VaeKeys{vae}}}), shape);
  }
  void write_config(const std::string& part, const models::ModelShape& shape) const {
    folder_.write(part + "/config.json", shape.architecture->to_json()(shape).dump());
  }
  /// Writes a pipeline that draws latents of 8 x 8 cells of 2 pixels, and returns its path.
  std::string write_pipeline(const json& scheduler = json::object(), const std::string& text = "64") const {
    json config = json::parse(R"({"_class_name": "DDIMScheduler", "beta_schedule": "linear", "beta_start": 0.001,
        "beta_end": 0.03, "num_train_timesteps": 500, "prediction_type": "epsilon", "clip_sample": false})");
    config.update(scheduler);
    folder_.write("sd/model_index.json", R"({"_class_name": "StableDiffusionPipeline",
        "scheduler": ["diffusers", "DDIMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"], "safety_checker": [null, null]})");
    folder_.write("sd/scheduler/scheduler_config.json", config.dump());
    std::filesystem::create_directories(folder_ / "sd/tokenizer");
    write_config("sd/unet", preset("sd-1.5-tiny", {"text=" + text}));
    write_config("sd/text_encoder", preset("clip-text-tiny"));
    write_config("sd/vae", preset("autoencoder-kl-tiny", {"levels=[8,16]", "height=16", "width=16"}));
    return folder_ / "sd";
  }
  test::TemporaryFolder folder_;
};

TEST_F(PipelineSources, TakeThePresetsOfAPreset) {
  const PipelineSource source = of_run(preset("sd-1.5-tiny"));
  EXPECT_EQ(source.captions.at(0).encoder, "clip-text-tiny");
  EXPECT_EQ(source.captions.at(0).tokenizer, "bytes");
  EXPECT_EQ(source.vae, "autoencoder-kl-tiny");
  EXPECT_EQ(source.factor, 4);
  EXPECT_EQ(source.seed, 7u);
  EXPECT_EQ(source.keys.target, "epsilon");
  EXPECT_EQ(source.keys.schedule, "scaled-linear");
  EXPECT_EQ(source.keys.guidance, 7.5);
  EXPECT_EQ(source.sampler.sampler, "ddim");
  EXPECT_THAT(source.notices, ElementsAre(HasSubstr("set vae.from")));
  EXPECT_EQ(of_run(preset("sd-2.1-tiny")).keys.target, "v");
  EXPECT_EQ(of_run(preset("sd-1.5-tiny"), {.target = "flow", .shift = "3"}).sampler.sampler, "flow");
  EXPECT_EQ(of_run(preset("sd-1.5-tiny"), {.target = "flow", .shift = "3"}).sampler.shift, 3);
}

TEST_F(PipelineSources, HaveTheGivenAutoencoder) {
  write_config("vae", preset("autoencoder-kl-tiny", {"levels=[8,16]", "height=16", "width=16"}));
  const PipelineSource source = of_run(preset("sd-1.5-tiny"), {}, folder_ / "vae");
  EXPECT_EQ(source.vae, folder_ / "vae");
  EXPECT_EQ(source.factor, 2);
  EXPECT_THAT(source.notices, IsEmpty()) << "its weights are not random";
  EXPECT_EQ(of_run(preset("sd-1.5-tiny"), {}, write_pipeline()).vae, folder_ / "sd/vae") << "that of a pipeline";
  write_config("eight", preset("autoencoder-kl-tiny", {"latent_channels=8"}));
  const auto refused = [&](const models::ModelShape& shape, const std::string& vae) {
    return test::thrown_message([&] { of_run(shape, {}, vae); });
  };
  EXPECT_THAT(refused(preset("sd-1.5-tiny"), folder_ / "eight"), HasSubstr("the 4 channels of the model: got 8"));
  EXPECT_THAT(refused(preset("sd-1.5-tiny"), "none"), HasSubstr("channels must be 3"));
  EXPECT_THAT(refused(preset("sd-1.5-tiny", {"text=32"}), ""), HasSubstr("clip-text-tiny"));
  const PipelineSource pixels = of_run(preset("dit-tiny"), {}, "none");
  EXPECT_EQ(pixels.factor, 1);
  EXPECT_EQ(pixels.sampler.clip, 1) << "pixels are in [-1, 1]";
  EXPECT_FALSE(pixels.has_latents() || pixels.reads_text());
}

TEST_F(PipelineSources, TakePartsAndNoiseOfAFolder) {
  const PipelineSource source = pipeline_in_folder(
      write_pipeline({{"prediction_type", "v_prediction"}, {"rescale_betas_zero_snr", true}}), models::built_in());
  EXPECT_EQ(source.model, folder_ / "sd/unet");
  EXPECT_EQ(source.captions.at(0).encoder, folder_ / "sd/text_encoder");
  EXPECT_EQ(source.captions.at(0).tokenizer, folder_ / "sd/tokenizer");
  EXPECT_EQ(source.vae, folder_ / "sd/vae");
  EXPECT_EQ(source.factor, 2);
  EXPECT_EQ(source.keys.target, "v");
  EXPECT_TRUE(source.keys.zero_terminal_snr);
  EXPECT_EQ(source.keys.beta_end, 0.03);
  EXPECT_EQ(source.keys.guidance, 7.5);
}

// What a run leaves out is that of the folder from which it starts.
TEST_F(PipelineSources, TakeTheDefaultsOfTheFolderOfARun) {
  const std::string folder = write_pipeline({{"prediction_type", "v_prediction"}, {"rescale_betas_zero_snr", true}});
  const PipelineSource source = of_run(preset("sd-1.5-tiny"), {}, "", folder);
  EXPECT_EQ(source.model, "") << "the run itself";
  EXPECT_EQ(source.vae, folder + "/vae");
  EXPECT_EQ(source.captions.at(0).encoder, folder + "/text_encoder");
  EXPECT_EQ(source.keys.target, "v");
  EXPECT_EQ(source.keys.schedule, "linear");
  EXPECT_EQ(source.keys.beta_start, 0.001);
  EXPECT_EQ(source.keys.beta_end, 0.03);
  EXPECT_EQ(source.keys.steps, 500);
  EXPECT_TRUE(source.keys.zero_terminal_snr);
  EXPECT_EQ(source.keys.levels().steps, 500);
  const PipelineSource other = of_run(preset("sd-1.5-tiny"), {.target = "sample", .schedule = "cosine"}, "", folder);
  EXPECT_EQ(other.keys.target, "sample");
  EXPECT_EQ(other.keys.beta_start, 0) << "betas belong to their schedule";
  EXPECT_THAT(test::thrown_message([&] { of_run(preset("sd-1.5-tiny"), {.target = "epsilon"}, "", folder); }),
              HasSubstr("\"v\""));
  // A run that starts from that run has the same parts.
  const Config first = read_given_config(test::source_dir() + "/examples/sd_finetune.toml",
                                         {"--model.from=" + folder, "--diffusion.guidance=2"})
                           .config;
  folder_.write("run/config.toml", to_toml(first));
  const PipelineSource second = of_run(preset("sd-1.5-tiny"), {}, "", folder_ / "run");
  EXPECT_EQ(second.vae, folder + "/vae");
  EXPECT_EQ(second.captions.at(0).tokenizer, folder + "/tokenizer");
  EXPECT_EQ(second.keys.target, "v");
  EXPECT_EQ(second.keys.guidance, 2);
}

// A run that trained adapters of both parts names both.
TEST_F(PipelineSources, CompareTheBaseOfAdaptersPartByPart) {
  const std::string folder = write_pipeline(), text = "sd/text_encoder/model.safetensors";
  folder_.write("sd/unet/diffusion_pytorch_model.safetensors", "unet");
  folder_.write(text, "text");
  const models::ModelShape unet = preset("sd-1.5-tiny"), encoder = preset("clip-text-tiny");
  const AdapterSource adapters{.path = "lora", .checkpoint = folder_ / "step"};
  const auto refusal = [&](const std::string& part, const models::ModelShape& shape) {
    return test::thrown_message([&] { check_same_base(adapters, {.path = folder + part, .shape = shape}); });
  };
  for (const bool trains_text : {true, false}) {
    const models::ModelShape trained = trains_text ? models::with_text_encoder(unet, encoder) : unet;
    checkpoint::Manifest manifest;
    manifest.progress = {{kBaseChecksum, checksum_of_base(folder, trained, built_in())}};
    std::filesystem::create_directories(folder_ / "step");
    manifest.write(folder_ / "step/manifest.json");
    EXPECT_EQ(refusal("/unet", unet), "");
    EXPECT_EQ(refusal("", unet), "");
    EXPECT_EQ(refusal("/text_encoder", encoder), "");
    folder_.write(text, "other");
    EXPECT_EQ(refusal("/unet", unet), "");
    if (trains_text) EXPECT_THAT(refusal("/text_encoder", encoder), HasSubstr("got other weights in " + folder));
    folder_.write(text, "text");
  }
}

TEST_F(PipelineSources, RefusePartsThatDoNotFit) {
  const auto refused = [&](const std::string& path) {
    return test::thrown_message([&] { pipeline_in_folder(path, models::built_in()); });
  };
  EXPECT_THAT(refused(write_pipeline(json::object(), "32")),
              HasSubstr("states of 32 features and 0 pooled ones, which the model reads: got 64 and 0"));
  write_pipeline();
  write_config("sd/vae", preset("autoencoder-kl-tiny", {"latent_channels=8"}));
  EXPECT_THAT(refused(folder_ / "sd"), HasSubstr("latents of 4 channels, which its model draws: got 8"));
  EXPECT_EQ(refused(write_pipeline()), "");
}

TEST_F(PipelineSources, GiveSamplersTheirOptions) {
  PipelineSource source = pipeline_in_folder(
      write_pipeline(
          {{"timestep_spacing", "trailing"}, {"rescale_betas_zero_snr", true}, {"prediction_type", "v_prediction"}}),
      models::built_in());
  const noise::SamplerOptions own = options_of(source, {.steps = 10, .eta = 0.5, .strength = 0.7});
  EXPECT_EQ(own.sampler, "ddim");
  EXPECT_EQ(own.spacing, "trailing");
  EXPECT_EQ(own.eta, 0.5);
  EXPECT_EQ(own.strength, 0.7);
  EXPECT_EQ(own.target, noise::Target::V);
  EXPECT_EQ(options_of(source, {.sampler = "ddpm"}).spacing, "") << "another sampler has its own";
  EXPECT_EQ(options_of(source, {.sampler = "ddpm", .spacing = "linspace"}).spacing, "linspace");
  EXPECT_EQ(options_of(source, {.spacing = "leading"}).spacing, "leading");
  EXPECT_EQ(plan_of(source, {.steps = 10}).steps.size(), 10u);
  source.sampler.karras = true;
  EXPECT_FALSE(options_of(source, {.sampler = "ddim"}).karras) << "it has no sigmas";
  EXPECT_TRUE(options_of(source, {.sampler = "dpm++2m"}).karras);
}

}  // namespace
}  // namespace colossal::run::pipeline_source_test
