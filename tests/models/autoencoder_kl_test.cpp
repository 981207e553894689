// AutoencoderKL against values computed with diffusers 0.42.1 in fp64; its counts, its form in diffusers, refusals.
#include "colossal/models/families/autoencoder_kl.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_tiles.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::autoencoder_kl_test {
namespace {

using testing::HasSubstr;

nlohmann::json small_config(int64_t sample_size = 32) {
  return {{"sample_size", sample_size},
          {"block_out_channels", {16, 32}},
          {"down_block_types", {"DownEncoderBlock2D", "DownEncoderBlock2D"}},
          {"up_block_types", {"UpDecoderBlock2D", "UpDecoderBlock2D"}},
          {"norm_num_groups", 8}};
}

/// Sets the parameters to the values that the tensors of diffusers' folder had: those sorted by name have t = 0, 1, ...
/// and the elements .1 sin((i i mod 1009) + t), plus 1 in norms.
void set_values(Made& made) {
  const std::vector<nn::ExternalName> names = autoencoder_kl_diffusers_names(made.model.shape);
  std::map<std::string, double> offsets;
  for (const nn::ExternalName& name : names)
    for (const nn::ExternalRows& part : name.parts) offsets[part.name];
  double next = 0;
  for (auto& [name, offset] : offsets) offset = next++;
  for (const nn::ExternalName& name : names) {
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    const auto parts = static_cast<int64_t>(name.parts.size());
    for (int64_t i = 0; i < parts; ++i) {
      at::Tensor part = value.narrow(0, i * (value.size(0) / parts), value.size(0) / parts);
      const at::Tensor index = at::arange(part.numel(), at::TensorOptions(at::kLong));
      const std::string& theirs = name.parts[i].name;
      const at::Tensor wave = ((index * index).remainder(1009).to(at::kDouble) + offsets.at(theirs)).sin() * .1;
      part.copy_(wave.view(part.sizes()) + (part.dim() == 1 && theirs.ends_with(".weight") ? 1 : 0));
    }
  }
}

double number(const at::Tensor& t) { return t.item<double>(); }

/// A small model with the values of the reference.
struct Golden : Made {
  explicit Golden(at::ScalarType dtype = at::kDouble, int64_t sample_size = 32)
      : Made(autoencoder_kl_from_diffusers(small_config(sample_size)), true, dtype) {
    set_values(*this);
  }
  at::Tensor mean(const std::vector<int64_t>& sizes) const {
    return moments_of(model, sines(.3, .1, sizes)).chunk(2, 1)[0];
  }
};

TEST(AutoencoderKl, EncodesAsDiffusersDoes) {
  const Golden made;
  const at::Tensor moments = moments_of(made.model, sines(.3, .1, {1, 3, 16, 16}));
  ASSERT_EQ(moments.sizes(), at::IntArrayRef({1, 8, 8, 8}));
  const at::Tensor mean = moments.chunk(2, 1)[0];
  EXPECT_NEAR(number(mean.flatten()[0]), .02802037086279, 1e-13);
  EXPECT_NEAR(number(mean.sum()), -9.220500847149, 1e-11);
  EXPECT_NEAR(number(mean.square().sum()), 5.113817109088, 1e-11);
  EXPECT_NEAR(number(moments.chunk(2, 1)[1].sum()), 12.17659227745, 1e-10);
}

TEST(AutoencoderKl, DecodesAsDiffusersDoes) {
  const Golden made;
  const at::Tensor pixels = decoded(made.model, made.mean({1, 3, 16, 16}));
  ASSERT_EQ(pixels.sizes(), at::IntArrayRef({1, 3, 16, 16}));
  EXPECT_NEAR(number(pixels.flatten()[0]), -.0601899040897, 1e-12);
  EXPECT_NEAR(number(pixels.sum()), -87.1718699177, 1e-9);
  EXPECT_NEAR(number(pixels.square().sum()), 178.2880994148, 1e-9);
}

TEST(AutoencoderKl, EncodesPicturesThatAreNotSquare) {
  const Golden made;
  const at::Tensor mean = made.mean({1, 3, 10, 14});
  ASSERT_EQ(mean.sizes(), at::IntArrayRef({1, 4, 5, 7}));
  EXPECT_NEAR(number(mean.sum()), -1.630504028856, 1e-11);
  EXPECT_EQ(made.mean({1, 3, 9, 7}).sizes(), at::IntArrayRef({1, 4, 4, 3})) << "odd sides lose a row or a column";
  EXPECT_THAT(test::thrown_message([&] { made.mean({1, 3, 1, 4}); }), HasSubstr("at least 2 x 2 pixels"));
}

TEST(AutoencoderKl, BlendsTilesAsDiffusersDoes) {
  const Golden made(at::kDouble, 8);
  const at::Tensor mean = made.mean({1, 3, 16, 16}), whole = decoded(made.model, mean);
  const at::Tensor tiled = decoded_in_tiles(made.model, made.parameters, mean);
  ASSERT_EQ(tiled.sizes(), whole.sizes());
  EXPECT_NEAR(number((tiled - whole).abs().max()), 2.05757740917, 1e-10);
  EXPECT_NEAR(number(tiled.flatten()[0]), -.0909146363983, 1e-12);
  EXPECT_NEAR(number(tiled.sum()), -115.2251813069, 1e-9);
  EXPECT_NEAR(number(tiled.square().sum()), 216.1893349828, 1e-9);
  const at::Tensor moments = moments_in_tiles(made.model, made.parameters, sines(.3, .1, {1, 3, 20, 14}));
  ASSERT_EQ(moments.sizes(), at::IntArrayRef({1, 8, 10, 7}));
  EXPECT_NEAR(number(moments.chunk(2, 1)[0].sum()), -2.122879510937, 1e-11);
  EXPECT_NEAR(number(moments.chunk(2, 1)[0].square().sum()), 4.738279425562, 1e-11);
}

TEST(AutoencoderKl, DecodesExactlyInOneTile) {
  const Golden made;  // tiles of 32 pixels
  const at::Tensor latents = sines(.3, .1, {1, 4, 16, 12});
  EXPECT_TRUE(at::equal(decoded_in_tiles(made.model, made.parameters, latents), decoded(made.model, latents)));
  EXPECT_FALSE(takes_tiles(autoencoder_of(made.model.shape), {16, 16}));
  EXPECT_TRUE(takes_tiles(autoencoder_of(made.model.shape), {8, 17}));
}

TEST(AutoencoderKl, ReconstructsFromTheDrawnLatent) {
  using tensor::Dim;
  const Golden made;
  const std::vector<Dim> dims{Dim::Row, Dim::Other, Dim::Other, Dim::Other};
  const at::Tensor pictures = sines(.3, .1, {2, 3, 8, 8}), noise = sines(.7, .2, {2, 4, 4, 4});
  tensor::Batch batch;
  batch.add("images", {pictures, dims});
  batch.add("noise", {noise, dims});
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  const States end = run_stage(made.model, all, {}, nn::step_of(batch));
  const at::Tensor moments = moments_of(made.model, pictures);
  const std::vector<at::Tensor> both = moments.chunk(2, 1);
  const at::Tensor want = decoded(made.model, both[0] + (both[1] / 2).exp() * noise);
  EXPECT_LT(number((reconstructed_pictures(end[0], 8, 8) - want).abs().max()), 1e-12);
  EXPECT_LT(number((end[1].transpose(1, 2).reshape({2, 8, 4, 4}) - moments).abs().max()), 1e-12);
}

TEST(AutoencoderKl, ScalesLatentsAndBack) {
  const AutoencoderSizes sizes{.scaling = 1.5305, .shift = .0609};
  const at::Tensor sample = sines(.3, .1, {1, 4, 2, 2}), latent = latent_of(sizes, sample);
  EXPECT_NEAR(number(latent.flatten()[1]), (std::sin(.4) - .0609) * 1.5305, 1e-15);
  EXPECT_LT(number((sample_of(sizes, latent) - sample).abs().max()), 1e-15);
}

TEST(AutoencoderKl, HasMomentsAndPixelsInFp32WithWeightsOf16Bits) {
  const Golden exact, narrow(at::kBFloat16);
  const at::Tensor pictures = sines(.3, .1, {1, 3, 16, 16});
  const at::Tensor want = moments_of(exact.model, pictures), got = moments_of(narrow.model, pictures);
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_LT(number((got - want).abs().max()), 0.1);
  EXPECT_EQ(decoded(narrow.model, got.chunk(2, 1)[0]).scalar_type(), at::kFloat);
}

TEST(AutoencoderKl, HasTheParametersOfStableDiffusion) {
  const auto count = [](nlohmann::json changes) {
    nlohmann::json j = autoencoder_kl_to_diffusers(built_in().resolve({.name = "autoencoder-kl"}));
    j.update(changes);
    const Made made(autoencoder_kl_from_diffusers(j), /*has_memory=*/false);
    return made.parameters.numel();
  };
  EXPECT_EQ(count(nlohmann::json::object()), 83'653'863);
  EXPECT_EQ(count({{"latent_channels", 16}, {"use_quant_conv", false}, {"use_post_quant_conv", false}}), 83'819'683);
}

TEST(AutoencoderKl, HasCostsByWhichPipelinesAreCut) {
  using tensor::Dim;
  const ModelShape shape = autoencoder_kl_from_diffusers(small_config());
  const std::vector<Dim> dims{Dim::Row, Dim::Other, Dim::Other, Dim::Other};
  tensor::Batch example;
  example.add("images", {at::empty({1, 3, 16, 16}, at::kMeta), dims});
  example.add("noise", {at::empty({1, 4, 8, 8}, at::kMeta), dims});
  const Costs costs = costs_of(shape, example, [](const Model&, const States& end, const nn::ForwardContext&) {
    return end[0].square().sum() + end[1].sum();
  });
  ASSERT_EQ(costs.blocks.size(), static_cast<size_t>(shape.layers));
  const double resnet = 2.0 * 256 * 9 * 2 * 16 * 16;  // two convolutions of 16 x 16 pixels, forward
  EXPECT_NEAR(costs.blocks[0] / (3 * resnet), 1, 0.2);
  EXPECT_GT(costs.last, 0);
}

TEST(AutoencoderKl, NamesTheTensorsOfDiffusers) {
  const ModelShape shape = built_in().resolve({.name = "autoencoder-kl"});
  std::map<std::string, std::string> ours;
  for (const nn::ExternalName& name : autoencoder_kl_diffusers_names(shape))
    for (const nn::ExternalRows& part : name.parts) ours[part.name] = name.ours;
  EXPECT_EQ(ours.size(), 248U);
  for (const char* name :
       {"encoder.conv_in.weight", "encoder.down_blocks.1.resnets.0.conv_shortcut.bias",
        "encoder.down_blocks.2.downsamplers.0.conv.weight", "encoder.mid_block.attentions.0.group_norm.weight",
        "encoder.conv_norm_out.bias", "encoder.conv_out.weight", "quant_conv.weight", "post_quant_conv.bias",
        "decoder.conv_in.weight", "decoder.mid_block.attentions.0.to_out.0.bias",
        "decoder.up_blocks.3.resnets.2.norm2.weight", "decoder.up_blocks.0.upsamplers.0.conv.bias",
        "decoder.conv_norm_out.weight", "decoder.conv_out.bias"})
    EXPECT_TRUE(ours.contains(name)) << name;
  EXPECT_THAT(autoencoder_kl_old_endings(),
              testing::Contains(testing::Pair("attentions.0.to_out.0.bias", "attentions.0.proj_attn.bias")));
}

TEST(AutoencoderKl, WritesTheConfigThatItReads) {
  for (const auto& own : std::vector<std::vector<std::string>>{
           {}, {"width=64", "shift=0.0609", "attention=false"}, {"quant_conv=false", "post_quant_conv=false"}}) {
    const ModelShape shape = built_in().resolve({.name = "autoencoder-kl-tiny", .own = own_keys(own)});
    const nlohmann::json j = autoencoder_kl_to_diffusers(shape);
    EXPECT_EQ(j["_class_name"], "AutoencoderKL");
    EXPECT_EQ(autoencoder_kl_from_diffusers(j), shape) << j.dump();
  }
  EXPECT_TRUE(autoencoder_kl_to_diffusers(built_in().resolve({.name = "autoencoder-kl"}))["shift_factor"].is_null());
  EXPECT_EQ(autoencoder_kl_from_diffusers(small_config()).own.as<AutoencoderKlSizes>().scaling, 0.18215);
}

TEST(AutoencoderKl, RefusesConfigsWithWhichItComputesOtherNumbers) {
  const auto refused = [](const char* key, const nlohmann::json& value) {
    nlohmann::json j = small_config();
    j[key] = value;
    return test::thrown_message([&] { autoencoder_kl_from_diffusers(j); });
  };
  EXPECT_EQ(refused("_name_or_path", "x"), "");
  EXPECT_EQ(refused("force_upcast", false), "");
  EXPECT_EQ(refused("sample_size", 33), "");
  EXPECT_THAT(refused("latents_mean", {0.1, 0.2, 0.3, 0.4}), HasSubstr("latents_mean"));
  EXPECT_THAT(refused("act_fn", "gelu"), HasSubstr("act_fn"));
  EXPECT_THAT(refused("out_channels", 4), HasSubstr("out_channels must be in_channels: got 4 and 3"));
  EXPECT_THAT(refused("up_block_types", {"UpDecoderBlock2D", "AttnUpDecoderBlock2D"}), HasSubstr("up_block_types"));
  EXPECT_THAT(refused("norm_num_groups", 12), HasSubstr("groups must divide the features of each level"));
  EXPECT_THAT(refused("double_z", false), HasSubstr("got double_z = false"));
  EXPECT_THAT(refused("_class_name", "VQModel"), HasSubstr("must be AutoencoderKL"));
}

TEST(AutoencoderKl, RefusesSizesThatDoNotFit) {
  const auto refused = [](ModelConfig config) {
    config.name = "autoencoder-kl-tiny";
    return test::thrown_message([&] { built_in().resolve(config); });
  };
  EXPECT_EQ(refused({.own = own_keys({"width=24"})}), "");
  EXPECT_THAT(refused({.own = own_keys({"width=18"})}), HasSubstr("width must be divisible by 4"));
  EXPECT_THAT(refused({.own = own_keys({"levels=[16,20]"})}), HasSubstr("groups must divide"));
  EXPECT_THAT(refused({.hidden = 32}), HasSubstr("hidden has no effect"));
  EXPECT_THAT(refused({.layers = 3}), HasSubstr("layers has no effect"));
  EXPECT_THAT(refused({.dropout = 0.1}), HasSubstr("no dropout"));
  EXPECT_THAT(test::thrown_message([] { autoencoder_of(built_in().resolve({.name = "dit-tiny"})); }),
              HasSubstr("name an autoencoder"));
}

}  // namespace
}  // namespace colossal::models::autoencoder_kl_test
