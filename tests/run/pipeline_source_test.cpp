// Pipelines before a weight is read: of presets, of folders of diffusers and of runs, and their samplers.
#include "colossal/run/objectives/diffusion/pipeline_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "colossal/base/config.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/manifest.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/denoiser.h"
#include "colossal/run/adapter_source.h"
#include "colossal/run/model_source.h"
#include "colossal/run/objectives/diffusion/latents_of_run.h"
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
                        const std::string& from = "", const std::string& text_encoder = "") const {
    Config config;
    config.training.seed = 7;
    config.model.from = from;
    return pipeline_of_run(
        config, OwnTables({{kDiffusion, keys}, {kVae, VaeKeys{vae}}, {kTextEncoder, TextEncoderKeys{text_encoder}}}),
        shape);
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
  /// Writes a pipeline of Stable Diffusion 3 or FLUX, without the third text encoder, and returns its path.
  std::string write_joint(const std::string& name, const json& scheduler) const {
    const bool is_flux = name == "flux";
    const std::vector<std::string> encoders =
        is_flux ? std::vector<std::string>{"clip-text-tiny", "t5-encoder-tiny"}
                : std::vector<std::string>{"clip-text-tiny-projected", "clip-text-tiny-projected"};
    json index{{"_class_name", is_flux ? "FluxPipeline" : "StableDiffusion3Pipeline"},
               {"scheduler", {"diffusers", "FlowMatchEulerDiscreteScheduler"}},
               {"transformer", {"diffusers", is_flux ? "FluxTransformer2DModel" : "SD3Transformer2DModel"}},
               {"vae", {"diffusers", "AutoencoderKL"}}};
    for (size_t i = 0; i < encoders.size(); ++i) {
      const std::string end = i == 0 ? "" : "_2";
      const models::ModelShape shape = preset(encoders[i]);
      write_config(name + "/text_encoder" + end, shape);
      std::filesystem::create_directories(folder_ / (name + "/tokenizer" + end));
      index["text_encoder" + end] = {"transformers", shape.architecture->to_json()(shape).at("architectures").at(0)};
      index["tokenizer" + end] = {"transformers", is_flux && i == 1 ? "T5TokenizerFast" : "CLIPTokenizer"};
    }
    folder_.write(name + "/model_index.json", index.dump());
    folder_.write(name + "/scheduler/scheduler_config.json", scheduler.dump());
    write_config(name + "/transformer", preset(name + "-tiny"));
    write_config(name + "/vae", preset("autoencoder-kl-tiny", {"levels=[8,16]", "height=16", "width=16"}));
    return folder_ / name;
  }
  test::TemporaryFolder folder_;
};

json flow_scheduler(const json& keys) {
  json config{{"_class_name", "FlowMatchEulerDiscreteScheduler"}, {"num_train_timesteps", 1000}};
  config.update(keys);
  return config;
}

TEST_F(PipelineSources, TakeTheTextEncodersAndTheShiftOfTheFamily) {
  const auto encoders = [](const PipelineSource& source) {
    std::vector<std::string> names;
    for (const CaptionSource& one : source.captions) names.push_back(one.encoder);
    return names;
  };
  const PipelineSource xl = of_run(preset("sdxl")), sd3 = of_run(preset("sd3-medium")),
                       dev = of_run(preset("flux-dev")), schnell = of_run(preset("flux-schnell"));
  EXPECT_THAT(encoders(xl), ElementsAre("clip-l", "open-clip-bigg"));
  EXPECT_THAT(encoders(sd3), ElementsAre("clip-l-projected", "open-clip-bigg", "t5-v1.1-xxl-encoder"));
  EXPECT_THAT(encoders(dev), ElementsAre("clip-l", "t5-v1.1-xxl-encoder"));
  EXPECT_EQ(dev.sizes.captions.at(1).tokens, 512);
  EXPECT_EQ(schnell.sizes.captions.at(1).tokens, 256);
  EXPECT_EQ(sd3.sizes.captions.at(2).tokens, 256);
  EXPECT_EQ(xl.vae, "autoencoder-kl-sdxl");
  EXPECT_TRUE(xl.zeros_for_empty && !sd3.zeros_for_empty);
  EXPECT_EQ(xl.keys.guidance, 5);
  EXPECT_EQ(sd3.sampler.shift, 3);
  EXPECT_EQ(sd3.sampler.spacing, "");
  EXPECT_EQ(schnell.sampler.shift, 1);
  EXPECT_EQ(dev.sampler.spacing, "trailing");
  EXPECT_NEAR(options_of(dev, {.cells = {32, 32}}).shift, std::exp(0.5), 1e-12) << "256 patches";
  EXPECT_NEAR(options_of(dev, {}).shift, std::exp(1.15), 1e-12) << "the 4096 of the model";
  EXPECT_EQ(of_run(preset("flux-dev"), {.shift = "2"}).sampler.shift, 2);
  EXPECT_THAT(test::thrown_message([&] { of_run(preset("sd3-tiny", {"text_tokens=40"})); }),
              HasSubstr("text_tokens must be at least 79, the tokens of its text encoders: got 40"));
  EXPECT_THAT(test::thrown_message([&] { of_run(preset("flux-schnell"), {.guidance = 3}); }),
              HasSubstr("has no input for it: got 3"));
}

// T5 of Stable Diffusion 3 may be missing: zeros are read in its place, unless [text_encoder] names one.
TEST_F(PipelineSources, MayLackTheLastTextEncoder) {
  const std::string folder = write_joint("sd3", flow_scheduler({{"shift", 3.0}}));
  const PipelineSource source = pipeline_in_folder(folder, models::built_in());
  EXPECT_EQ(source.captions.size(), 2u);
  EXPECT_EQ(source.sizes.captions.size(), 2u);
  EXPECT_EQ(source.sizes.zero_tokens, 256);
  EXPECT_EQ(source.keys.shift, "3");
  EXPECT_EQ(options_of(source, {}).shift, 3);
  const models::ModelShape shape = models::built_in().resolve({.from = folder});
  const PipelineSource trained = of_run(shape, {}, "", folder);
  EXPECT_EQ(trained.captions.size(), 2u);
  EXPECT_EQ(trained.sizes.zero_tokens, 256);
  const PipelineSource with = of_run(shape, {}, "", folder, "t5-encoder-tiny");
  EXPECT_EQ(with.captions.at(2).encoder, "t5-encoder-tiny");
  EXPECT_EQ(with.captions.at(2).tokenizer, "bytes");
  EXPECT_EQ(with.sizes.zero_tokens, 0);
  EXPECT_EQ(with.sizes.captions.at(2).tokens, 256);
  json index = json::parse(test::read_all(folder_ / "sd3/model_index.json"));
  index["text_encoder_3"] = {"transformers", "T5EncoderModel"}, index["tokenizer_3"] = {"transformers", "T5Tokenizer"};
  folder_.write("sd3/model_index.json", index.dump());
  write_config("sd3/text_encoder_3", preset("t5-encoder-tiny"));
  std::filesystem::create_directories(folder_ / "sd3/tokenizer_3");
  PipelineSource given = source;
  replace_parts(given, "", folder);
  EXPECT_EQ(given.captions.size(), 3u) << "a pipeline gives its T5 too";
  EXPECT_EQ(given.sizes.zero_tokens, 0);
}

TEST_F(PipelineSources, FollowTheShiftOfAFolder) {
  const auto shift = [&](const json& keys) {
    const PipelineSource source = pipeline_in_folder(write_joint("flux", flow_scheduler(keys)), models::built_in());
    EXPECT_EQ(source.sampler.spacing, "trailing");
    return options_of(source, {.cells = {32, 32}}).shift;
  };
  EXPECT_NEAR(shift({{"use_dynamic_shifting", true}, {"shift", 3.0}}), std::exp(0.5), 1e-12);
  EXPECT_EQ(shift({{"shift", 1.0}}), 1);
  EXPECT_EQ(shift({{"shift", 2.0}}), 2);
  const auto refused = [&](const char* name, const json& keys) {
    return test::thrown_message(
        [&] { pipeline_in_folder(write_joint(name, flow_scheduler(keys)), models::built_in()); });
  };
  EXPECT_THAT(refused("flux", {{"use_dynamic_shifting", true}, {"max_shift", 2.0}}), HasSubstr("max_shift"));
  EXPECT_THAT(refused("sd3", {{"use_dynamic_shifting", true}}), HasSubstr("must be false for a pipeline that is not"));
}

TEST_F(PipelineSources, HaveTheGivenTextEncoder) {
  write_config("clip", preset("clip-text-tiny"));
  EXPECT_THAT(test::thrown_message([&] { of_run(preset("sd-1.5-tiny"), {}, "", "", folder_ / "clip"); }),
              HasSubstr("must have its tokenizer in it"));
  folder_.write("tokenizer/tokenizer.json", "{}");
  const PipelineSource source = of_run(preset("sd-1.5-tiny"), {}, "", "", folder_ / "clip");
  EXPECT_EQ(source.captions.at(0).encoder, folder_ / "clip");
  EXPECT_EQ(source.captions.at(0).tokenizer, folder_ / "tokenizer");
  const auto refused = [&](const char* name, const std::string& encoder) {
    return test::thrown_message([&] { of_run(preset(name), {}, "", "", encoder); });
  };
  EXPECT_THAT(refused("dit-tiny", "clip-text-tiny"), HasSubstr("needs a model that reads captions"));
  EXPECT_THAT(refused("sdxl-tiny", "clip-text-tiny"), HasSubstr("reads 2 text encoders: got clip-text-tiny"));
  EXPECT_THAT(refused("sdxl-tiny", "text_encoder_3=clip-text-tiny"), HasSubstr("text_encoder, text_encoder_2: got"));
  EXPECT_THAT(refused("sdxl-tiny", "text_encoder,text_encoder_2=clip-text-tiny"), HasSubstr("form text_encoder_2="));
  EXPECT_THAT(refused("sd-1.5-tiny", "t5-tiny"), HasSubstr("got t5-tiny, a t5, which"));
  EXPECT_THAT(refused("sd-1.5-tiny", "clip-l"), HasSubstr("states of 64 features"));
  EXPECT_STREQ(models::denoiser_of(preset("stdit3-xl-2")).captions.at(0).preset, "t5-v1.1-xxl-encoder");
}

// An encoder takes the place of the only one of its kind, or the place that its name says.
TEST_F(PipelineSources, TakeTextEncodersByKindAndByName) {
  for (const char* name : {"t5", "clip"})
    write_config(name, preset(name[0] == 't' ? "t5-encoder-tiny" : "clip-text-tiny"));
  folder_.write("t5/tokenizer.json", "{}");
  folder_.write("tokenizer_2/tokenizer.json", "{}");
  const PipelineSource t5 = of_run(preset("flux-tiny"), {}, "", "", folder_ / "t5");
  EXPECT_EQ(t5.captions.at(0).encoder, "clip-text-tiny");
  EXPECT_EQ(t5.captions.at(1).encoder, folder_ / "t5");
  EXPECT_EQ(t5.captions.at(1).tokenizer, folder_ / "t5");
  EXPECT_EQ(of_run(preset("sd3-tiny"), {}, "", "", folder_ / "t5").captions.at(2).encoder, folder_ / "t5");
  const PipelineSource named =
      of_run(preset("flux-tiny"), {}, "", "", concat("text_encoder=clip-text-tiny,text_encoder_2=", folder_ / "t5"));
  EXPECT_EQ(named.captions.at(0).encoder, "clip-text-tiny");
  EXPECT_EQ(named.captions.at(1).encoder, folder_ / "t5");
  std::filesystem::rename(folder_ / "t5/tokenizer.json", folder_ / "t5.json");
  EXPECT_EQ(of_run(preset("flux-tiny"), {}, "", "", folder_ / "t5").captions.at(1).tokenizer, folder_ / "tokenizer_2");
  EXPECT_THAT(
      test::thrown_message([&] { of_run(preset("flux-tiny"), {}, "", "", concat("text_encoder=", folder_ / "t5")); }),
      HasSubstr("must have its tokenizer in it"));
}

// A folder whose autoencoder or text encoders are not there draws with those of others.
TEST_F(PipelineSources, LetOthersGiveWhatAFolderLacks) {
  const std::string flux = write_joint("flux", flow_scheduler(json::object())),
                    sd3 = write_joint("sd3", flow_scheduler({{"shift", 3.0}}));
  const OtherParts others{.vae = sd3, .text_encoder = "text_encoder=clip-text-tiny,text_encoder_2=t5-encoder-tiny"};
  for (const char* part : {"vae", "text_encoder", "text_encoder_2", "tokenizer_2"}) {
    std::filesystem::remove_all(folder_ / concat("flux/", part));
    EXPECT_THAT(test::thrown_message([&] { pipeline_in_folder(flux, models::built_in()); }), HasSubstr("the folder"));
    const PipelineSource source = pipeline_in_folder(flux, models::built_in(), "", others);
    EXPECT_EQ(source.vae, folder_ / "sd3/vae");
    EXPECT_EQ(source.captions.at(1).encoder, "t5-encoder-tiny");
    EXPECT_EQ(of_run(preset("flux-tiny"), {}, others.vae, flux, others.text_encoder).captions, source.captions);
  }
  EXPECT_THAT(test::thrown_message([&] {
                pipeline_in_folder(flux, models::built_in(), "", {.vae = sd3, .text_encoder = "t5-encoder-tiny"});
              }),
              HasSubstr("text_encoder.from"));
  const PipelineSource zeros = pipeline_in_folder(sd3, models::built_in(), "", {.text_encoder = sd3});
  EXPECT_EQ(zeros.sizes.zero_tokens, 256) << "no folder has the third";
}

// A model that is no pipeline has the parts that are named.
TEST_F(PipelineSources, PutPartsBesideAModelAlone) {
  write_config("alone", preset("flux-tiny"));
  const std::string flux = write_joint("flux", flow_scheduler(json::object()));
  const PipelineSource source = pipeline_of_model(folder_ / "alone", flux, flux);
  EXPECT_EQ(source.model, folder_ / "alone");
  EXPECT_EQ(source.vae, flux + "/vae");
  EXPECT_EQ(source.captions.at(1).encoder, flux + "/text_encoder_2");
  EXPECT_EQ(source.sampler.sampler, "flow");
  EXPECT_EQ(source.keys.guidance, 3.5);
  EXPECT_THAT(test::thrown_message([&] { pipeline_of_model(folder_ / "alone", flux, ""); }),
              HasSubstr("name one with --text-encoder"));
  EXPECT_THAT(test::thrown_message([&] { pipeline_of_model(folder_ / "alone", "", flux); }),
              HasSubstr("name one with --vae"));
  PipelineSource other = pipeline_in_folder(flux, models::built_in());
  replace_parts(other, write_joint("sd3", flow_scheduler({{"shift", 3.0}})), "");
  EXPECT_EQ(other.vae, folder_ / "sd3/vae");
}

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

// The weights of a text encoder that learns are those of the pipeline from which the run starts.
TEST_F(PipelineSources, RefuseToTrainATextEncoderOfAnotherPlace) {
  const auto message = [](const std::vector<std::string>& flags) {
    return test::thrown_message([&] { check_text_encoder(read_given_config("", flags).config); });
  };
  const std::string from = "--model.from=" + write_pipeline(), other = "--text_encoder.from=clip-text-tiny";
  const std::vector<std::string> adapters{from, "--adapter.kind=lora", "--adapter.text_encoder=true"};
  EXPECT_EQ(message(adapters), "");
  EXPECT_EQ(message({from, other}), "");
  EXPECT_THAT(message({adapters[0], adapters[1], adapters[2], other}),
              HasSubstr("trains with the text encoder of model.from: got text_encoder.from = \"clip-text-tiny\""));
  EXPECT_THAT(message({from, other, "--adapter.kind=textual-inversion"}), HasSubstr("text_encoder.from"));
  const std::string clips = std::filesystem::path(folder_.write("clips/colossal_pipeline.json", "{}")).parent_path();
  EXPECT_THAT(message({"--model.from=" + clips, adapters[1], adapters[2]}), HasSubstr("needs a pipeline of diffusers"));
}

}  // namespace
}  // namespace colossal::run::pipeline_source_test
