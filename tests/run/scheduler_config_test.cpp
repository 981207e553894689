// Schedulers of diffusers as keys and options. The configs are those of published folders, and what diffusers 0.42.1
// writes of each class with its defaults.
#include "colossal/run/objectives/diffusion/scheduler_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "colossal/base/json.h"
#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run::scheduler_config_test {
namespace {

using nlohmann::json;
using noise::SamplerOptions;
using noise::Target;
using noise::Variance;
using testing::AllOf;
using testing::HasSubstr;

const json kStableDiffusion15 = json::parse(R"({"_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0",
    "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085, "num_train_timesteps": 1000,
    "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1, "trained_betas": null,
    "clip_sample": false})");
const json kStableDiffusion21 = json::parse(R"({"_class_name": "DDIMScheduler", "_diffusers_version": "0.8.0",
    "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085, "clip_sample": false,
    "num_train_timesteps": 1000, "prediction_type": "v_prediction", "set_alpha_to_one": false, "skip_prk_steps": true,
    "steps_offset": 1, "trained_betas": null})");

/// Returns the config that diffusers writes of a class with its defaults, with other values of some keys.
json written(const std::string& class_name, const json& changes = json::object()) {
  static const json table = json::parse(R"({"num_train_timesteps":1000,"beta_start":0.0001,"beta_end":0.02,
      "beta_schedule":"linear","trained_betas":null,"prediction_type":"epsilon","steps_offset":0})");
  static const json sigmas =
      json::parse(R"({"use_karras_sigmas":false,"use_exponential_sigmas":false,"use_beta_sigmas":false})");
  static const json solver = json::parse(R"({"solver_order":2,"thresholding":false,"dynamic_thresholding_ratio":0.995,
      "sample_max_value":1.0,"lower_order_final":true,"use_flow_sigmas":false,"flow_shift":1.0,
      "final_sigmas_type":"zero","use_dynamic_shifting":false,"time_shift_type":"exponential",
      "rescale_betas_zero_snr":false,"timestep_spacing":"linspace"})");
  static const std::map<std::string, std::vector<json>> classes{
      {"DDPMScheduler", {table, json::parse(R"({"variance_type":"fixed_small","clip_sample":true,"thresholding":false,
            "dynamic_thresholding_ratio":0.995,"clip_sample_range":1.0,"sample_max_value":1.0,
            "timestep_spacing":"leading","rescale_betas_zero_snr":false})")}},
      {"DDIMScheduler", {table, json::parse(R"({"clip_sample":true,"set_alpha_to_one":true,"thresholding":false,
            "dynamic_thresholding_ratio":0.995,"clip_sample_range":1.0,"sample_max_value":1.0,
            "timestep_spacing":"leading","rescale_betas_zero_snr":false})")}},
      {"PNDMScheduler",
       {table, json::parse(R"({"skip_prk_steps":false,"set_alpha_to_one":false,"timestep_spacing":"leading"})")}},
      {"EulerDiscreteScheduler",
       {table, sigmas, json::parse(R"({"interpolation_type":"linear","sigma_min":null,"sigma_max":null,
            "timestep_spacing":"linspace","timestep_type":"discrete","rescale_betas_zero_snr":false,
            "final_sigmas_type":"zero"})")}},
      {"EulerAncestralDiscreteScheduler",
       {table, json::parse(R"({"timestep_spacing":"linspace","rescale_betas_zero_snr":false})")}},
      {"HeunDiscreteScheduler",
       {table, sigmas, json::parse(R"({"beta_start":0.00085,"beta_end":0.012,"clip_sample":false,
            "clip_sample_range":1.0,"timestep_spacing":"linspace"})")}},
      {"DPMSolverMultistepScheduler",
       {table, sigmas, solver, json::parse(R"({"algorithm_type":"dpmsolver++","solver_type":"midpoint",
            "euler_at_final":false,"use_lu_lambdas":false,"lambda_min_clipped":null,"variance_type":null})")}},
      {"UniPCMultistepScheduler",
       {table, sigmas, solver, json::parse(R"({"predict_x0":true,"solver_type":"bh2","disable_corrector":[],
            "solver_p":null,"sigma_min":null,"sigma_max":null,"shift_terminal":null})")}},
      {"FlowMatchEulerDiscreteScheduler",
       {sigmas, json::parse(R"({"num_train_timesteps":1000,"shift":1.0,"use_dynamic_shifting":false,"base_shift":0.5,
            "max_shift":1.15,"base_image_seq_len":256,"max_image_seq_len":4096,"invert_sigmas":false,
            "shift_terminal":null,"time_shift_type":"exponential","stochastic_sampling":false})")}}};
  json config{{"_class_name", class_name}, {"_diffusers_version", "0.42.1"}};
  for (const json& part : classes.at(class_name)) config.update(part);
  config.update(changes);
  return config;
}

struct Expected {
  json config;
  DiffusionKeys keys;
  SamplerOptions sampler;
};

/// Returns the keys of a scheduler with a linear table of 1,000 levels.
DiffusionKeys linear(double start = 1e-4, double end = .02) {
  return {.target = "epsilon", .schedule = "linear", .beta_start = start, .beta_end = end};
}

std::vector<Expected> expected() {
  const DiffusionKeys scaled{.target = "epsilon", .schedule = "scaled-linear", .beta_start = 8.5e-4, .beta_end = .012};
  DiffusionKeys scaled_v = scaled, zero = linear(), shifted{.target = "flow", .shift = "2.5"};
  scaled_v.target = zero.target = "v";
  zero.zero_terminal_snr = true;
  const auto flow = [](double shift) {
    return SamplerOptions{.sampler = "flow", .shift = shift, .target = Target::Flow};
  };
  const json pndm{{"skip_prk_steps", true}, {"prediction_type", "v_prediction"}};
  DiffusionKeys pndm_keys = linear();
  pndm_keys.target = "v";
  return {
      {kStableDiffusion15,
       scaled,
       {.sampler = "pndm", .spacing = "leading", .steps_offset = 1, .set_alpha_to_one = false}},
      {kStableDiffusion21,
       scaled_v,
       {.sampler = "ddim", .spacing = "leading", .steps_offset = 1, .set_alpha_to_one = false, .target = Target::V}},
      {written("DDPMScheduler"), linear(), {.sampler = "ddpm", .spacing = "leading", .clip = 1}},
      {written("DDPMScheduler", {{"variance_type", "learned_range"}, {"clip_sample", false}}),
       linear(),
       {.sampler = "ddpm", .spacing = "leading", .variance = Variance::Learned}},
      {written("DDPMScheduler", {{"variance_type", "fixed_large"}, {"clip_sample_range", 2.5}}),
       linear(),
       {.sampler = "ddpm", .spacing = "leading", .clip = 2.5, .variance = Variance::Large}},
      {written("DDIMScheduler"), linear(), {.sampler = "ddim", .spacing = "leading", .clip = 1}},
      {written(
           "DDIMScheduler",
           {{"rescale_betas_zero_snr", true}, {"prediction_type", "v_prediction"}, {"timestep_spacing", "trailing"}}),
       zero,
       {.sampler = "ddim", .spacing = "trailing", .clip = 1, .target = Target::V}},
      {written("DDIMScheduler", {{"beta_schedule", "squaredcos_cap_v2"}, {"prediction_type", "sample"}}),
       {.target = "sample", .schedule = "cosine"},
       {.sampler = "ddim", .spacing = "leading", .clip = 1, .target = Target::Sample}},
      {written("PNDMScheduler", pndm),
       pndm_keys,
       {.sampler = "pndm", .spacing = "leading", .set_alpha_to_one = false, .target = Target::V}},
      {written("EulerDiscreteScheduler"), linear(), {.sampler = "euler", .spacing = "linspace"}},
      {written("EulerDiscreteScheduler",
               {{"final_sigmas_type", "sigma_min"}, {"use_karras_sigmas", true}, {"num_train_timesteps", 500}}),
       [] {
         auto keys = linear();
         keys.steps = 500;
         return keys;
       }(),
       {.sampler = "euler", .spacing = "linspace", .karras = true, .ends_at_sigma_min = true}},
      {written("EulerAncestralDiscreteScheduler"), linear(), {.sampler = "euler-ancestral", .spacing = "linspace"}},
      {written("HeunDiscreteScheduler"), linear(8.5e-4, .012), {.sampler = "heun", .spacing = "linspace"}},
      {written("DPMSolverMultistepScheduler"), linear(), {.sampler = "dpm++2m", .spacing = "linspace"}},
      {written("DPMSolverMultistepScheduler", {{"algorithm_type", "sde-dpmsolver++"}, {"euler_at_final", true}}),
       linear(),
       {.sampler = "dpm++2m-sde", .spacing = "linspace"}},
      {written("UniPCMultistepScheduler"), linear(), {.sampler = "unipc", .spacing = "linspace"}},
      {written("FlowMatchEulerDiscreteScheduler"), {.target = "flow", .shift = "1"}, flow(1)},
      {written("FlowMatchEulerDiscreteScheduler", {{"use_dynamic_shifting", true}}), {.target = "flow"}, flow(1)},
      {written("FlowMatchEulerDiscreteScheduler", {{"shift", 2.5}}), shifted, flow(2.5)},
  };
}

void expect_same(const SchedulerConfig& got, const DiffusionKeys& keys, const SamplerOptions& want,
                 const std::string& what) {
  const SamplerOptions& o = got.sampler;
  EXPECT_EQ(got.keys, keys) << what;
  const auto values = [](const SamplerOptions& s) {
    return testing::PrintToString(std::tuple(s.sampler, s.spacing, s.steps_offset, s.karras, s.set_alpha_to_one,
                                             s.ends_at_sigma_min, s.clip, static_cast<int>(s.variance), s.shift,
                                             static_cast<int>(s.target)));
  };
  EXPECT_EQ(values(o), values(want)) << what;
}

TEST(SchedulerConfig, HasTheKeysAndOptionsOfPublishedFoldersAndOfEachClass) {
  for (const Expected& row : expected())
    expect_same(read_scheduler(row.config), row.keys, row.sampler, row.config.dump());
}

TEST(SchedulerConfig, HasTheDefaultsOfAClassForKeysThatAreMissing) {
  for (const std::string& name : scheduler_names()) {
    json bare{{"_class_name", name}}, whole = written(name);
    if (name == "PNDMScheduler") bare["skip_prk_steps"] = whole["skip_prk_steps"] = true;
    const SchedulerConfig want = read_scheduler(whole);
    expect_same(read_scheduler(bare), want.keys, want.sampler, name);
  }
}

TEST(SchedulerConfig, KeepsItsMeaningWithAllKeysOfItsClass) {
  for (const Expected& row : expected()) {
    const json config = scheduler_json(read_scheduler(row.config));
    expect_same(read_scheduler(config), row.keys, row.sampler, config.dump());
    EXPECT_EQ(config["_class_name"], row.config["_class_name"]);
    json differing;
    const json defaults = written(config["_class_name"]);
    for (const auto& [key, value] : defaults.items())
      if (!config.contains(key) && key != "lambda_min_clipped") differing.push_back(key);
    for (const auto& [key, value] : row.config.items())
      if (!key.starts_with('_') && config.contains(key) && config[key] != value) differing.push_back(key);
    const bool ends_anyway = row.config.value("euler_at_final", false);  // has no effect there
    EXPECT_EQ(differing, ends_anyway ? json{"euler_at_final"} : json()) << config.dump();
  }
}

TEST(SchedulerConfig, GivesAKnownSamplerItsOwnKeysFromAnyClass) {
  const SchedulerConfig dpm = read_scheduler(kStableDiffusion15, {.sampler = "dpm++2m-sde"});
  expect_same(dpm, read_scheduler(kStableDiffusion15).keys,
              {.sampler = "dpm++2m-sde", .spacing = "linspace", .steps_offset = 1}, "of another class");
  json unknown = kStableDiffusion21;
  unknown["_class_name"] = "LMSDiscreteScheduler";
  unknown["some_key_of_lms"] = 3;
  EXPECT_EQ(read_scheduler(unknown, {.sampler = "euler"}).keys.target, "v");
  EXPECT_THAT(test::thrown_message([&] { read_scheduler(unknown, {.sampler = "eulr"}); }),
              HasSubstr("did you mean `euler`?"));
  EXPECT_EQ(read_scheduler(written("FlowMatchEulerDiscreteScheduler"), {.sampler = "ddim"}).keys.target, "flow");
  EXPECT_EQ(read_scheduler(kStableDiffusion15, {.sampler = "flow"}).keys.target, "epsilon");
}

TEST(SchedulerConfig, ChangesAsThePipelinesOfStableDiffusionDo) {
  const auto options = [](const char* pipeline, const char* name) {
    return read_scheduler(written(name), {.pipeline = pipeline}).sampler;
  };
  EXPECT_EQ(options("StableDiffusionPipeline", "DDIMScheduler").steps_offset, 1);
  EXPECT_EQ(options("StableDiffusionPipeline", "DDIMScheduler").clip, 0);
  EXPECT_EQ(options("StableDiffusionInpaintPipeline", "DDIMScheduler").clip, 1);
  EXPECT_EQ(options("StableDiffusionInpaintPipeline", "PNDMScheduler").sampler, "pndm");
  EXPECT_EQ(options("DiTPipeline", "DDIMScheduler").steps_offset, 0);
  EXPECT_EQ(options("DiTPipeline", "DDIMScheduler").clip, 1);
}

TEST(SchedulerConfig, HasANumberThatJsonLacks) {
  const test::TemporaryFolder folder;
  std::string text = written("DPMSolverMultistepScheduler").dump(2);
  const std::string null = "\"lambda_min_clipped\": null";
  text.replace(text.find(null), null.size(), "\"lambda_min_clipped\": -Infinity");
  folder.write("scheduler_config.json", text);
  EXPECT_EQ(open_scheduler(folder.path()).sampler.sampler, "dpm++2m");
  folder.write("scheduler_config.json", written("DPMSolverMultistepScheduler", {{"lambda_min_clipped", -5.1}}).dump());
  EXPECT_THAT(test::thrown_message([&] { open_scheduler(folder.path()); }), HasSubstr("lambda_min_clipped"));
}

TEST(SchedulerConfig, RefusesValuesThatChangeThePictures) {
  const std::pair<const char*, json> refused[] = {
      {"DDIMScheduler", {{"trained_betas", {.1, .2}}}},
      {"DDIMScheduler", {{"thresholding", true}}},
      {"DDIMScheduler", {{"beta_schedule", "sigmoid"}}},
      {"DDPMScheduler", {{"variance_type", "fixed_large_log"}}},
      {"PNDMScheduler", {{"skip_prk_steps", false}}},
      {"PNDMScheduler", {{"prediction_type", "sample"}}},
      {"EulerDiscreteScheduler", {{"interpolation_type", "log_linear"}}},
      {"EulerDiscreteScheduler", {{"timestep_type", "continuous"}}},
      {"EulerDiscreteScheduler", {{"sigma_max", 10.0}}},
      {"EulerDiscreteScheduler", {{"use_beta_sigmas", true}}},
      {"HeunDiscreteScheduler", {{"use_exponential_sigmas", true}}},
      {"DPMSolverMultistepScheduler", {{"solver_order", 3}}},
      {"DPMSolverMultistepScheduler", {{"solver_type", "heun"}}},
      {"DPMSolverMultistepScheduler", {{"algorithm_type", "dpmsolver"}}},
      {"DPMSolverMultistepScheduler", {{"euler_at_final", true}, {"final_sigmas_type", "sigma_min"}}},
      {"DPMSolverMultistepScheduler", {{"use_flow_sigmas", true}}},
      {"UniPCMultistepScheduler", {{"solver_type", "bh1"}}},
      {"UniPCMultistepScheduler", {{"predict_x0", false}}},
      {"UniPCMultistepScheduler", {{"disable_corrector", {0}}}},
      {"FlowMatchEulerDiscreteScheduler", {{"base_shift", 0.4}, {"use_dynamic_shifting", true}}},
      {"FlowMatchEulerDiscreteScheduler", {{"stochastic_sampling", true}}}};
  for (const auto& [name, change] : refused)
    EXPECT_THAT(test::thrown_message([&] { read_scheduler(written(name, change)); }),
                AllOf(HasSubstr(change.begin().key()), HasSubstr(name)))
        << change.dump();
  const auto message = [](const json& config) { return test::thrown_message([&] { read_scheduler(config); }); };
  EXPECT_EQ(message(written("FlowMatchEulerDiscreteScheduler", {{"base_shift", 0.4}})), "") << "it is not read";
  const json flow = written("FlowMatchEulerDiscreteScheduler");
  EXPECT_EQ(read_scheduler(flow, {.pipeline = "FluxPipeline"}).sampler.spacing, "trailing");
  EXPECT_EQ(read_scheduler(flow, {.pipeline = "StableDiffusion3Pipeline"}).sampler.spacing, "");
  EXPECT_THAT(message({{"_class_name", "DDIMSchedular"}}), HasSubstr("did you mean `DDIMScheduler`?"));
  EXPECT_THAT(message(written("DDIMScheduler", {{"step_offset", 1}})), HasSubstr("did you mean `steps_offset`?"));
  EXPECT_THAT(test::thrown_message([] { scheduler_json({.keys = {.target = "edm"}}); }), HasSubstr("edm"));
}

}  // namespace
}  // namespace colossal::run::scheduler_config_test
