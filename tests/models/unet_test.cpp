// The UNet against values computed with diffusers 0.42.1 in fp64; its counts, its first prediction, its form in
// diffusers.
#include "colossal/models/families/unet.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::unet_test {
namespace {

using testing::HasSubstr;

/// Returns the config that diffusers' values were computed with.
nlohmann::json small_config() {
  return {{"block_out_channels", {32, 64}},
          {"layers_per_block", 1},
          {"down_block_types", {"CrossAttnDownBlock2D", "DownBlock2D"}},
          {"up_block_types", {"UpBlock2D", "CrossAttnUpBlock2D"}},
          {"cross_attention_dim", 16},
          {"attention_head_dim", 4},
          {"norm_num_groups", 8},
          {"sample_size", 8}};
}

ModelShape small() { return unet_from_diffusers(small_config()); }

/// Sets the parameters to the values that the tensors of diffusers' folder had: those sorted by name have t = 0, 1, ...
/// and the elements .1 sin((i i mod 1009) + t), plus 1 in norms.
void set_values(Made& made) {
  const std::vector<nn::ExternalName> names = unet_diffusers_names(made.model.shape);
  std::map<std::string, double> offsets;
  for (const nn::ExternalName& name : names)
    for (const nn::ExternalRows& part : name.parts) offsets[part.name];
  double next = 0;
  for (auto& [name, offset] : offsets) offset = next++;
  for (const nn::ExternalName& name : names) {
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    const int64_t whole = value.size(0) / static_cast<int64_t>(name.parts.size());
    int64_t first = 0;
    for (const nn::ExternalRows& part : name.parts) {
      at::Tensor rows = value.narrow(0, first, part.is_whole() ? whole : part.count);
      first += rows.size(0);
      const int64_t begin = part.first * value[0].numel();
      const at::Tensor index = at::arange(begin, begin + rows.numel(), at::TensorOptions(at::kLong));
      const bool is_norm = value.dim() == 1 && name.ours.ends_with(".weight");
      const at::Tensor terms = (index * index).remainder(1009).to(at::kDouble) + offsets.at(part.name);
      rows.copy_((terms.sin() * .1 + (is_norm ? 1 : 0)).view(rows.sizes()));
    }
  }
}

nn::ForwardContext picture_step(int64_t height = 8, int64_t width = 8) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("noised", {sines(.3, .1, {1, 4, height, width}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {at::full({1}, 500, at::TensorOptions(at::kDouble)), {Dim::Row}});
  batch.add("text", {sines(.2, std::acos(0), {1, 5, 16}), {Dim::Row, Dim::Other, Dim::Feature}});  // cosines
  return nn::step_of(batch);
}

at::Tensor prediction(const Made& made, const nn::ForwardContext& step) {
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  return predicted_picture(made.model.shape, run_stage(made.model, all, {}, step)[0], *step.batch);
}

double number(const at::Tensor& t) { return t.item<double>(); }

at::Tensor loss_of(const at::Tensor& y) { return (y - sines(.17, .5, {1, 4, 8, 8})).square().mean(); }

/// Returns the norm of the gradients of all parameters.
double norm_of_gradients(const Made& made, const at::Tensor& loss) {
  loss.backward();
  double squares = 0;
  for (const nn::Parameter& p : made.parameters) squares += number(p.value.grad().square().sum());
  return std::sqrt(squares);
}

TEST(Unet, HasTheValuesAndGradientsOfDiffusers) {
  Made made(small());
  set_values(made);
  const at::Tensor y = prediction(made, picture_step());
  ASSERT_EQ(y.sizes(), at::IntArrayRef({1, 4, 8, 8}));
  EXPECT_NEAR(number(y.flatten()[0]), -.3353373607187, 1e-12);
  EXPECT_NEAR(number(y.sum()), 51.60403047454, 1e-10);
  EXPECT_NEAR(number(y.square().sum()), 111.6870746528, 1e-9);
  const at::Tensor loss = loss_of(y);
  EXPECT_NEAR(number(loss), .9701259963973, 1e-12);
  EXPECT_NEAR(norm_of_gradients(made, loss), 8.330762655662, 1e-11);
}

/// Returns the config of a small UNet of SDXL's form: a transformer of two layers, a pooled text and sizes.
nlohmann::json small_sdxl() {
  nlohmann::json config = small_config();
  config.update({{"down_block_types", {"DownBlock2D", "CrossAttnDownBlock2D"}},
                 {"up_block_types", {"CrossAttnUpBlock2D", "UpBlock2D"}},
                 {"attention_head_dim", {2, 4}},
                 {"transformer_layers_per_block", {1, 2}},
                 {"use_linear_projection", true},
                 {"addition_embed_type", "text_time"},
                 {"addition_time_embed_dim", 8},
                 {"projection_class_embeddings_input_dim", 68}});
  return config;
}

TEST(Unet, HasTheValuesAndGradientsOfSdxl) {
  using tensor::Dim;
  Made made(unet_from_diffusers(small_sdxl()));
  set_values(made);
  tensor::Batch batch = *picture_step().batch;
  batch.add("pooled", {sines(.4, .3, {1, 20}), {Dim::Row, Dim::Other}});
  batch.add("sizes", {at::tensor({96., 128., 4., 8., 64., 48.}, at::kDouble).view({1, 6}), {Dim::Row, Dim::Other}});
  const at::Tensor y = prediction(made, nn::step_of(batch));
  EXPECT_NEAR(number(y.flatten()[0]), -.4745897030796, 1e-12);
  EXPECT_NEAR(number(y.sum()), -51.50439263939, 1e-10);
  EXPECT_NEAR(number(y.square().sum()), 113.7989180132, 1e-9);
  const at::Tensor loss = loss_of(y);
  EXPECT_NEAR(number(loss), .9446060433277, 1e-12);
  EXPECT_NEAR(norm_of_gradients(made, loss), 6.416826148702, 1e-11);
}

TEST(Unet, TakesPicturesOfAnySize) {
  Made made(small());
  set_values(made);
  const at::NoGradGuard no_grad;
  EXPECT_NEAR(number(prediction(made, picture_step(6, 10)).sum()), 29.98428530113, 1e-10);
  const at::Tensor odd = prediction(made, picture_step(5, 7));
  ASSERT_EQ(odd.sizes(), at::IntArrayRef({1, 4, 5, 7}));
  EXPECT_NEAR(number(odd.sum()), .6173069929785, 1e-11);
}

TEST(Unet, HasTheValuesOfDiffusersWithHeadsOfEachLevelAndLinearProjections) {
  nlohmann::json config = small_config();
  config["attention_head_dim"] = {2, 4};
  config["use_linear_projection"] = true;
  Made made(unet_from_diffusers(config));
  set_values(made);
  const at::NoGradGuard no_grad;
  const at::Tensor y = prediction(made, picture_step());
  EXPECT_NEAR(number(y.flatten()[0]), -.3400039734303, 1e-12);
  EXPECT_NEAR(number(y.sum()), 51.70931311447, 1e-10);
  EXPECT_NEAR(number(y.square().sum()), 111.7742965503, 1e-9);
  EXPECT_NEAR(number(loss_of(y)), .971265461999, 1e-12);
}

// attention_head_dim is a number of heads: as their features it would give other values.
TEST(Unet, HasOtherValuesWithOtherHeads) {
  nlohmann::json config = small_config();
  config["attention_head_dim"] = {8, 16};  // 4 features of each head
  Made made(unet_from_diffusers(config));
  set_values(made);
  const at::NoGradGuard no_grad;
  EXPECT_GT(std::abs(number(prediction(made, picture_step()).sum()) - 51.60403047454), 1e-3);
}

TEST(Unet, ReadsEverySkip) {
  const at::NoGradGuard no_grad;
  Made made(small());
  set_values(made);
  const size_t skips = 4;
  ASSERT_EQ(made.model.states.size(), 3 + skips);
  const at::Tensor whole = prediction(made, picture_step());
  for (size_t skip = 0; skip < skips; ++skip) {
    Model lossy = made.model;
    for (Block& block : lossy.blocks)
      if (block.reads.size() == 3 && block.reads[2] == static_cast<int>(3 + skip))
        block.run = [run = block.run, state = 3 + skip](States& states, const nn::ForwardContext& step) {
          states[state] = at::zeros_like(states[state]);
          run(states, step);
        };
    const nn::ForwardContext step = picture_step();
    const Stage all{0, static_cast<int64_t>(lossy.blocks.size())};
    const at::Tensor y = predicted_picture(lossy.shape, run_stage(lossy, all, {}, step)[0], *step.batch);
    EXPECT_GT(number((y - whole).abs().max()), 1e-3) << skip;
  }
}

TEST(Unet, PredictsZeroBeforeTheFirstStep) {
  const Made made(small());
  EXPECT_TRUE(prediction(made, picture_step()).eq(0).all().item<bool>());
}

TEST(Unet, PredictsInFp32FromWeightsOf16Bits) {
  Made exact(small()), narrow(small(), /*has_memory=*/true, at::kBFloat16);
  set_values(exact);
  set_values(narrow);
  const at::NoGradGuard no_grad;
  const at::Tensor want = prediction(exact, picture_step()), got = prediction(narrow, picture_step());
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_LT(number((got - want).abs().max()), 0.1);
}

TEST(Unet, HasCostsByWhichPipelinesAreCut) {
  const tensor::Batch example =
      picture_step(6, 7).batch->map([](const tensor::Field& field) { return field.tensor.to(at::kMeta); });
  const Costs costs = costs_of(small(), example, [&](const Model& model, const States& end, const nn::ForwardContext&) {
    return predicted_picture(model.shape, end[0], example).square().sum();
  });
  ASSERT_EQ(costs.blocks.size(), 14U);
  const double pixels = 6 * 7, kernel = 9;
  const double resnet = 2 * pixels * kernel * 2 * 32 * 32 + 2.0 * 128 * 32;  // two convolutions and the time
  EXPECT_NEAR(costs.blocks[0], 3 * resnet, 1e-9 * resnet);
  EXPECT_GT(costs.blocks[1], 3 * 2 * pixels * (1 + 4 + 2 + 12 + 1) * 32 * 32);  // matrices of the transformer
  EXPECT_GT(costs.first, 0);
  EXPECT_GT(costs.last, 0);
}

TEST(Unet, HasTheParametersOfStableDiffusion) {
  const auto count = [](const char* preset) {
    const Made made(built_in().resolve({.name = preset}), /*has_memory=*/false);
    return made.parameters.numel();
  };
  EXPECT_EQ(count("sd-1.5"), 859'520'964);
  EXPECT_EQ(count("sd-2.1"), 865'910'724);
  EXPECT_EQ(count("sd-1.5-tiny"), 1'489'028);
  EXPECT_EQ(count("sdxl"), 2'567'463'684);
}

/// Returns the config.json of the published folder `unet` of Stable Diffusion 1.5, and that of 2.1.
nlohmann::json published(bool is_second) {
  nlohmann::json j = {
      {"_class_name", "UNet2DConditionModel"},
      {"_diffusers_version", "0.6.0"},
      {"act_fn", "silu"},
      {"attention_head_dim", 8},
      {"block_out_channels", {320, 640, 1280, 1280}},
      {"center_input_sample", false},
      {"cross_attention_dim", 768},
      {"down_block_types", {"CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"}},
      {"downsample_padding", 1},
      {"flip_sin_to_cos", true},
      {"freq_shift", 0},
      {"in_channels", 4},
      {"layers_per_block", 2},
      {"mid_block_scale_factor", 1},
      {"norm_eps", 1e-05},
      {"norm_num_groups", 32},
      {"out_channels", 4},
      {"sample_size", 64},
      {"up_block_types", {"UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"}}};
  if (!is_second) return j;
  j.update({{"attention_head_dim", {5, 10, 20, 20}},
            {"cross_attention_dim", 1024},
            {"dual_cross_attention", false},
            {"num_class_embeds", nullptr},
            {"only_cross_attention", false},
            {"sample_size", 96},
            {"upcast_attention", true},
            {"use_linear_projection", true}});
  return j;
}

TEST(Unet, WritesThePublishedConfigsThatItReads) {
  for (const bool is_second : {false, true}) {
    ModelShape preset = built_in().resolve({.name = is_second ? "sd-2.1" : "sd-1.5"});
    auto own = preset.own.as<UnetSizes>();
    EXPECT_EQ(own.target, is_second ? "v" : "epsilon");
    own.target = "epsilon";  // which the folder of the scheduler has
    preset.own = own;
    const nlohmann::json given = published(is_second);
    const ModelShape shape = unet_from_diffusers(given);
    EXPECT_EQ(shape, preset);
    const nlohmann::json written = unet_to_diffusers(shape);
    for (const auto& [key, value] : given.items())
      if (!key.starts_with('_')) EXPECT_EQ(written[key], value) << key;
    EXPECT_EQ(unet_from_diffusers(written), shape);
    EXPECT_EQ(written.size(), 48U + 2);  // every key of the class, its name and version
  }
}

TEST(Unet, WritesTheConfigOfSdxlThatItReads) {
  nlohmann::json given = published(/*is_second=*/true);
  given.update({{"addition_embed_type", "text_time"},
                {"addition_time_embed_dim", 256},
                {"attention_head_dim", {5, 10, 20}},
                {"block_out_channels", {320, 640, 1280}},
                {"cross_attention_dim", 2048},
                {"down_block_types", {"DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"}},
                {"projection_class_embeddings_input_dim", 2816},
                {"sample_size", 128},
                {"transformer_layers_per_block", {1, 2, 10}},
                {"up_block_types", {"CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"}},
                {"upcast_attention", nullptr}});
  const ModelShape shape = unet_from_diffusers(given);
  EXPECT_EQ(shape, built_in().resolve({.name = "sdxl"}));
  const nlohmann::json written = unet_to_diffusers(shape);
  for (const auto& [key, value] : given.items())
    if (!key.starts_with('_') && !value.is_null()) EXPECT_EQ(written[key], value) << key;
  EXPECT_EQ(unet_from_diffusers(written), shape);
}

TEST(Unet, ReadsAHeightAndAWidth) {
  nlohmann::json config = small_config();
  config["sample_size"] = {6, 10};
  const ModelShape shape = unet_from_diffusers(config);
  EXPECT_EQ(denoiser_of(shape).height, 6);
  EXPECT_EQ(denoiser_of(shape).width, 10);
  EXPECT_EQ(unet_to_diffusers(shape)["sample_size"], config["sample_size"]);
  config["sample_size"] = nullptr;
  EXPECT_EQ(denoiser_of(unet_from_diffusers(config)).width, 64);
}

TEST(Unet, RefusesConfigsWithWhichItComputesOtherNumbers) {
  const auto refused = [](const char* key, const nlohmann::json& value) {
    nlohmann::json j = small_config();
    j[key] = value;
    return test::thrown_message([&] { unet_from_diffusers(j); });
  };
  EXPECT_EQ(refused("_name_or_path", "x"), "");
  EXPECT_EQ(refused("num_attention_heads", nullptr), "");
  for (const auto& [key, value] : std::map<const char*, nlohmann::json>{{"num_attention_heads", 4},
                                                                        {"freq_shift", 1},
                                                                        {"flip_sin_to_cos", false},
                                                                        {"addition_embed_type", "text_time"},
                                                                        {"transformer_layers_per_block", {1, 2}},
                                                                        {"addition_time_embed_dim", 8},
                                                                        {"layers_per_block", {1, 2}},
                                                                        {"class_embed_type", "timestep"},
                                                                        {"norm_num_groups", nullptr},
                                                                        {"mid_block_type", nullptr},
                                                                        {"conv_in_kernel", 1},
                                                                        {"time_embedding_dim", 8}})
    EXPECT_THAT(refused(key, value), HasSubstr(key));
  EXPECT_THAT(refused("addition_embed_type", "text"), HasSubstr("addition_embed_type"));
  EXPECT_THAT(refused("norm_num_groups", 0), HasSubstr("groups must be between 1 and"));
  EXPECT_THAT(refused("attention_head_dim", 0), HasSubstr("attention_heads must be between 1 and"));
  EXPECT_THAT(refused("up_block_types", {"CrossAttnUpBlock2D", "UpBlock2D"}),
              HasSubstr("up_block_types must be those of down_block_types in the other order: got CrossAttnUpBlock2D"));
  EXPECT_THAT(refused("down_block_types", {"AttnDownBlock2D", "DownBlock2D"}), HasSubstr("got AttnDownBlock2D"));
  EXPECT_THAT(refused("qk_norm", "rms"), HasSubstr("got qk_norm = \"rms\""));
  EXPECT_THAT(refused("_class_name", "UNet2DModel"), HasSubstr("must be UNet2DConditionModel"));
}

TEST(Unet, RefusesSizesThatDoNotFit) {
  const auto refused = [](const std::vector<std::string>& own) {
    return test::thrown_message([&] { built_in().resolve({.name = "sd-1.5-tiny", .own = own_keys(own)}); });
  };
  EXPECT_EQ(refused({"width=17"}), "");
  EXPECT_THAT(refused({"groups=5"}), HasSubstr("groups must divide features: got 5 groups, 32 features"));
  EXPECT_THAT(refused({"transformers=1"}), HasSubstr("transformers must have an entry for each of the 3 levels"));
  EXPECT_THAT(refused({"attention_heads=3,4,4"}), HasSubstr("attention_heads must divide features: got 3 heads"));
  EXPECT_THAT(test::thrown_message([] { built_in().resolve({.name = "sd-1.5-tiny", .layers = 3}); }),
              HasSubstr("layers has no effect on a unet"));
  EXPECT_THAT(test::thrown_message([] { built_in().resolve({.name = "sd-1.5-tiny", .hidden = 64}); }),
              HasSubstr("hidden has no effect on a unet"));
  EXPECT_THAT(test::thrown_message([] { built_in().resolve({.name = "sd-1.5-tiny", .dropout = 0.1}); }),
              HasSubstr("a UNet has no dropout"));
  EXPECT_EQ(built_in().resolve({.name = "sd-1.5-tiny", .own = own_keys({"resnets=2"})}).layers, 32);
}

}  // namespace
}  // namespace colossal::models::unet_test
