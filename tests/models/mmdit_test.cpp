// The transformers of Stable Diffusion 3 and of FLUX against values computed with diffusers 0.42.1 in fp64; their
// counts, their first prediction, their forms in diffusers.
#include "colossal/models/families/mmdit.h"

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
#include "colossal/nn/patches.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::mmdit_test {
namespace {

using testing::HasSubstr;

const nlohmann::json kSd3{{"num_attention_heads", 4},
                          {"attention_head_dim", 8},
                          {"num_layers", 2},
                          {"patch_size", 2},
                          {"in_channels", 4},
                          {"out_channels", 4},
                          {"joint_attention_dim", 24},
                          {"caption_projection_dim", 32},
                          {"pooled_projection_dim", 20},
                          {"pos_embed_max_size", 6},
                          {"sample_size", 8}};
const nlohmann::json kFlux{{"num_attention_heads", 2},    {"attention_head_dim", 16}, {"num_layers", 1},
                           {"num_single_layers", 2},      {"in_channels", 16},        {"joint_attention_dim", 24},
                           {"pooled_projection_dim", 20}, {"guidance_embeds", true},  {"axes_dims_rope", {4, 6, 6}}};

int64_t last_row(const nn::ExternalRows& rows) { return rows.first + (rows.count - 1) * rows.stride; }

/// Sets the parameters to the values that the tensors of diffusers' folder had: those sorted by name have t = 0, 1, ...
/// and the elements .1 sin((i i mod 1009) + t), plus 1 in norms.
void set_values(Made& made, const std::vector<nn::ExternalName>& names) {
  std::map<std::string, at::Tensor> theirs;
  for (const nn::ExternalName& name : names) {
    if (name.ours == "positions") continue;  // no parameter
    std::vector<int64_t> sizes = made.parameters.at(name.ours).spec.shape;
    for (const nn::ExternalRows& part : name.parts) {
      sizes[0] = part.is_whole() ? made.parameters.at(name.ours).spec.shape[0] / static_cast<int64_t>(name.parts.size())
                                 : last_row(part) + 1;
      at::Tensor& whole = theirs[part.name];
      if (!whole.defined() || whole.size(0) < sizes[0]) whole = at::empty(sizes, at::kDouble);
    }
  }
  int64_t next = 0;
  for (auto& [name, value] : theirs) {
    const at::Tensor i = at::arange(value.numel(), at::TensorOptions(at::kLong));
    const bool is_norm = value.dim() == 1 && name.ends_with(".weight");
    value.copy_(
        (((i * i).remainder(1009) + next++).to(at::kDouble).sin() * .1 + (is_norm ? 1 : 0)).view(value.sizes()));
  }
  for (const nn::ExternalName& name : names) {
    if (name.ours == "positions") continue;
    std::vector<at::Tensor> parts;
    for (const nn::ExternalRows& part : name.parts) {
      const at::Tensor& whole = theirs.at(part.name);
      parts.push_back(part.is_whole() ? whole : whole.slice(0, part.first, last_row(part) + 1, part.stride));
    }
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    value.copy_(at::cat(parts).view(value.sizes()));
  }
}

/// Returns a step of one picture, five words, and what the model is told of the whole caption.
nn::ForwardContext step_of(const at::Tensor& picture, double time) {
  using tensor::Dim;
  const auto number = [](double value) { return at::full({1}, value, at::TensorOptions(at::kDouble)); };
  tensor::Batch batch;
  batch.add("noised", {picture, {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {number(time), {Dim::Row}});
  batch.add("text", {(at::arange(5 * 24, at::TensorOptions(at::kDouble)) * .2).cos().view({1, 5, 24}),
                     {Dim::Row, Dim::Other, Dim::Feature}});
  batch.add("pooled", {sines(.4, .3, {1, 20}), {Dim::Row, Dim::Other}});
  batch.add("guidance", {number(3.5), {Dim::Row}});
  return nn::step_of(batch);
}

at::Tensor prediction(const Made& made, const nn::ForwardContext& step) {
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  return predicted_picture(made.model.shape, run_stage(made.model, all, {}, step)[0], *step.batch);
}

/// Returns the picture of FLUX's packed patches [1, rows * columns, channels * 4], whose channels are outermost.
at::Tensor unpacked(const at::Tensor& patches, int64_t rows, int64_t columns) {
  return patches.view({1, rows, columns, -1, 2, 2}).permute({0, 3, 1, 4, 2, 5}).reshape({1, -1, 2 * rows, 2 * columns});
}

double number(const at::Tensor& t) { return t.item<double>(); }

double norm_of_gradients(const Made& made) {
  double sum = 0;
  for (const nn::Parameter& p : made.parameters)
    if (p.value.grad().defined()) sum += number(p.value.grad().square().sum());
  return std::sqrt(sum);
}

TEST(Flux, HasTheValuesAndGradientsOfDiffusers) {
  Made made(flux_from_diffusers(kFlux));
  set_values(made, flux_diffusers_names(made.model.shape));
  const nn::ForwardContext step = step_of(unpacked(sines(.3, .1, {1, 12, 16}), 3, 4), 700);
  const at::Tensor y = nn::cut_patches(prediction(made, step), {4, 6, 8, 2, 0});
  ASSERT_EQ(y.sizes(), at::IntArrayRef({1, 12, 16}));
  EXPECT_NEAR(number(y.flatten()[0]), -.9340054514272, 1e-12);
  EXPECT_NEAR(number(y.sum()), -3.068069611901, 1e-11);
  EXPECT_NEAR(number(y.square().sum()), 38.33636429971, 1e-10);
  const at::Tensor loss = (y - sines(.17, .5, {1, 12, 16})).square().mean();
  EXPECT_NEAR(number(loss), .7227873237043, 1e-12);
  loss.backward();
  EXPECT_NEAR(norm_of_gradients(made), 1.171984438441, 1e-11);
}

TEST(Sd3, HasTheValuesOfDiffusers) {
  Made made(sd3_from_diffusers(kSd3));
  set_values(made, sd3_diffusers_names(made.model.shape));
  const at::Tensor y = prediction(made, step_of(sines(.3, .1, {1, 4, 8, 8}), 700));
  ASSERT_EQ(y.sizes(), at::IntArrayRef({1, 4, 8, 8}));
  EXPECT_NEAR(number(y.flatten()[0]), .03048304058752, 1e-13);
  EXPECT_NEAR(number(y.sum()), -5.801499347858, 1e-11);
  EXPECT_NEAR(number(y.square().sum()), 43.81110472298, 1e-10);
  EXPECT_NEAR(number((y - sines(.17, .5, {1, 4, 8, 8})).square().mean()), .6955367176817, 1e-12);
}

/// Moves all parameters by `distance` along sines.
void move(Made& made, double distance) {
  const at::NoGradGuard no_grad;
  for (nn::Parameter& p : made.parameters) p.value += sines(.7, .2, p.value.sizes().vec()) * distance;
}

TEST(Mmdit, HasGradientsThatFiniteDifferencesFind) {
  const nn::ForwardContext step = step_of(sines(.3, .1, {1, 4, 4, 6}), 700);
  for (const ModelShape& shape : {sd3_from_diffusers(kSd3), flux_from_diffusers(kFlux)}) {
    Made made(shape);
    set_values(made, shape.architecture->diffusers.names(shape));
    const auto loss = [&] { return (prediction(made, step) - sines(.17, .5, {1, 4, 4, 6})).square().mean(); };
    loss().backward();
    double slope = 0;
    for (const nn::Parameter& p : made.parameters)
      slope += number((p.value.grad() * sines(.7, .2, p.value.sizes().vec())).sum());
    constexpr double kDistance = 1e-5;
    move(made, kDistance);
    const double after = number(loss());
    move(made, -2 * kDistance);
    EXPECT_NEAR((after - number(loss())) / (2 * kDistance), slope, 1e-7 * std::abs(slope));
  }
}

TEST(Mmdit, PredictsZeroBeforeTheFirstStep) {
  const nn::ForwardContext step = step_of(sines(.3, .1, {1, 4, 6, 4}), 700);
  for (const ModelShape& shape : {sd3_from_diffusers(kSd3), flux_from_diffusers(kFlux)}) {
    const at::Tensor y = prediction(Made(shape), step);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({1, 4, 6, 4}));
    EXPECT_TRUE(y.eq(0).all().item<bool>());
  }
}

// A FLUX that is told the strength of guidance draws in one pass what others need two for.
TEST(Flux, ReadsTheStrengthOfGuidanceIfItIsTold) {
  const nn::ForwardContext step = step_of(sines(.3, .1, {1, 4, 4, 6}), 700);
  const auto without = std::make_shared<const tensor::Batch>(step.batch->without("guidance"));
  Made told(flux_from_diffusers(kFlux));
  nlohmann::json schnell = kFlux;
  schnell["guidance_embeds"] = false;
  Made other(flux_from_diffusers(schnell));
  EXPECT_THAT(test::thrown_message([&] { check_fields(told.model, *without); }), HasSubstr("guidance"));
  EXPECT_NO_THROW(check_fields(other.model, *without));
  EXPECT_TRUE(denoiser_of(told.model.shape).told_guidance);
  EXPECT_FALSE(denoiser_of(other.model.shape).told_guidance);
}

TEST(Mmdit, HasAsManyTokensAsThePictureOfABatchHasPatches) {
  const Made made(built_in().resolve({.name = "flux-tiny"}), /*has_memory=*/false);
  const tensor::Batch example = example_noised(made.model.shape, 2);
  EXPECT_EQ(tokens_of(made.model, nn::step_of(example)), 16);
  const tensor::Field noised{at::empty({2, 4, 6, 10}), example.field("noised").dims};
  EXPECT_EQ(tokens_of(made.model, nn::step_of(example.with("noised", noised))), 15);
}

TEST(Mmdit, HasThePublishedNumbersOfParameters) {
  const auto count = [](const char* preset) {
    nn::Parameters parameters({}, {.device = at::kMeta, .without_memory = true});
    nn::SerialLayers layers(parameters);
    make_model(built_in().resolve({.name = preset}), layers);
    return parameters.numel();
  };
  EXPECT_EQ(count("sd3-medium"), 2'028'328'000);
  EXPECT_EQ(count("flux-dev"), 11'901'408'320);
  EXPECT_EQ(count("flux-schnell"), 11'901'408'320 - (256 + 3072 + 2) * 3072);  // without the guidance embedder
  EXPECT_EQ(count("autoencoder-kl-flux"), 83'819'683);
}

TEST(Mmdit, WritesTheConfigThatItReads) {
  for (const char* preset : {"sd3-tiny", "sd3-medium", "flux-dev", "flux-schnell"}) {
    const ModelShape shape = built_in().resolve({.name = preset});
    const nlohmann::json j = shape.architecture->diffusers.to_json(shape);
    ModelShape again = shape.architecture->diffusers.from_json(j);
    auto own = again.own.as<MmditSizes>();
    own.text_tokens = shape.own.as<MmditSizes>().text_tokens;  // which no key of diffusers has
    again.own = own;
    again.architecture->settle(again);
    EXPECT_EQ(again, shape) << j.dump();
  }
}

TEST(Mmdit, WritesNoConfigWithWhichDiffusersComputesOtherNumbers) {
  const auto refused = [](const char* preset, const std::vector<std::string>& own) {
    const ModelShape shape = built_in().resolve({.name = preset, .own = own_keys(own)});
    return test::thrown_message([&] { shape.architecture->diffusers.to_json(shape); });
  };
  EXPECT_EQ(refused("flux-tiny", {"height=12"}), "");
  EXPECT_THAT(refused("sd3-tiny", {"height=12"}), HasSubstr("only with width = height, 12: got 8"));
  EXPECT_THAT(refused("sd3-tiny", {"table=0"}), HasSubstr("only with table = 1 or more: got 0"));
  EXPECT_THAT(refused("sd3-tiny", {"single=1"}), HasSubstr("only with single = 0: got 1"));
  EXPECT_THAT(refused("flux-tiny", {"patch=4"}), HasSubstr("only with patch = 2: got 4"));
  EXPECT_THAT(refused("flux-tiny", {"frames=3"}), HasSubstr("only with frames = 0: got 3"));
  EXPECT_THAT(refused("flux-tiny", {"head_norms=false"}), HasSubstr("only with head_norms = true: got false"));
}

TEST(Mmdit, RefusesConfigsWithWhichItComputesOtherNumbers) {
  const auto refused = [](const nlohmann::json& config, const char* key, const nlohmann::json& value) {
    nlohmann::json j = config;
    j[key] = value;
    return test::thrown_message(
        [&] { config.contains("axes_dims_rope") ? flux_from_diffusers(j) : sd3_from_diffusers(j); });
  };
  EXPECT_EQ(refused(kSd3, "qk_norm", "rms_norm"), "");
  EXPECT_THAT(refused(kSd3, "qk_norm", "layer_norm"), HasSubstr("qk_norm"));
  EXPECT_THAT(refused(kSd3, "patch_size", 0), HasSubstr("must be from 1 to 1048576: got 0"));
  EXPECT_THAT(refused(kFlux, "num_attention_heads", -2), HasSubstr("must be from 1 to 1048576: got -2"));
  EXPECT_THAT(refused(kSd3, "dual_attention_layers", {0, 1}), HasSubstr("dual_attention_layers"));
  EXPECT_THAT(refused(kSd3, "caption_projection_dim", 1152), HasSubstr("must be the hidden size, 32: got 1152"));
  EXPECT_THAT(refused(kSd3, "out_channels", 8), HasSubstr("out_channels must be in_channels: got 8 and 4"));
  EXPECT_THAT(refused(kFlux, "axes_dims_rope", {4, 6, 4}), HasSubstr("axes must have the features of a head, 16"));
  EXPECT_THAT(refused(kFlux, "in_channels", 18), HasSubstr("divisible by the 4 cells of a patch: got 18"));
  EXPECT_THAT(refused(kFlux, "num_single_layers", 0), HasSubstr("num_single_layers must be 1 or more"));
  EXPECT_THAT(refused(kFlux, "qk_norm", "rms_norm"), HasSubstr("got qk_norm = \"rms_norm\""));
  EXPECT_THAT(refused(kFlux, "_class_name", "SD3Transformer2DModel"), HasSubstr("must be FluxTransformer2DModel"));
}

TEST(Mmdit, RefusesSizesThatDoNotFit) {
  const auto refused = [](const char* preset, const std::vector<std::string>& own) {
    return test::thrown_message([&] { built_in().resolve({.name = preset, .own = own_keys(own)}); });
  };
  EXPECT_EQ(refused("sd3-tiny", {"height=12"}), "");
  EXPECT_THAT(refused("flux-tiny", {"width=7"}), HasSubstr("width must be divisible by patch: got 7, patch 2"));
  EXPECT_THAT(refused("sd3-tiny", {"height=34"}),
              HasSubstr("at most the 16 patches of the table of positions: got 17"));
  EXPECT_THAT(refused("flux-tiny", {"single=3"}), HasSubstr("single must leave a double block: got 3 of 3 layers"));
  Made made(sd3_from_diffusers(kSd3));
  EXPECT_THAT(test::thrown_message([&] { prediction(made, step_of(sines(.3, .1, {1, 4, 8, 14}), 700)); }),
              HasSubstr("at most 6 x 6 patches, as the table of positions has: got 4 x 7"));
}

}  // namespace
}  // namespace colossal::models::mmdit_test
