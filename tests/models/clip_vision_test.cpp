// CLIP's encoder of pictures against values computed with transformers 5.23 in fp64; its counts, its folders, its
// refusals.
#include "colossal/models/families/clip_vision.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/image_encoder.h"
#include "colossal/models/registry.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::clip_vision_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// The config of the model that transformers' values were computed with.
json small() {
  return {{"model_type", "clip_vision_model"},
          {"architectures", {"CLIPVisionModelWithProjection"}},
          {"hidden_size", 32},
          {"intermediate_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"image_size", 8},
          {"patch_size", 4},
          {"projection_dim", 24}};
}

json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

ModelShape shape_of(const json& config) {
  ModelShape shape = built_in().shape_of(config);
  shape.validate();
  return shape;
}

/// Sets the parameters to the values that the tensors of the folder had: those sorted by name have t = 0, 1, ... and
/// the elements .1 sin((i i mod 1009) + t), plus 1 in the weights of norms.
void set_values(Made& made) {
  const std::vector<nn::ExternalName> names = made.model.shape.architecture->hugging_face.names(made.model.shape);
  std::map<std::string, double> offsets;
  for (const nn::ExternalName& name : names)
    for (const nn::ExternalRows& part : name.parts) offsets[part.name];
  double next = 0;
  for (auto& [name, offset] : offsets) offset = next++;
  for (const nn::ExternalName& name : names) {
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    const auto parts = static_cast<int64_t>(name.parts.size());
    for (int64_t i = 0; i < parts; ++i) {
      const std::string& theirs = name.parts[i].name;
      at::Tensor part = value.narrow(0, i * (value.size(0) / parts), value.size(0) / parts);
      const at::Tensor index = at::arange(part.numel(), at::TensorOptions(at::kLong));
      part.copy_(((index * index).remainder(1009).to(at::kDouble) + offsets.at(theirs)).sin().view(part.sizes()) * .1);
      if (part.dim() == 1 && theirs.ends_with(".weight")) part.add_(1);
    }
  }
}

at::Tensor embedding(const json& config) {
  Made made(shape_of(config));
  set_values(made);
  const at::NoGradGuard no_grad;
  return image_embedding(made.model, sines(.3, .1, {2, 3, 8, 8}));
}

TEST(ClipVision, HasTheValuesOfTransformers) {
  const at::Tensor quick = embedding(small()), exact = embedding(with(small(), "hidden_act", "gelu"));
  ASSERT_EQ(quick.sizes(), at::IntArrayRef({2, 24}));
  EXPECT_NEAR(quick.sum().item<double>(), 6.397802496541, 1e-11);
  EXPECT_NEAR(quick.square().sum().item<double>(), 12.08825777248, 1e-10);
  EXPECT_NEAR(quick[1][5].item<double>(), .3441054753337, 1e-12);
  EXPECT_NEAR(exact.sum().item<double>(), 6.395955931559, 1e-11);
  EXPECT_NEAR(exact[1][5].item<double>(), .3435783135177, 1e-12);
}

TEST(ClipVision, HasTheParametersOfTransformers) {
  const auto count = [](const ModelShape& shape) { return Made(shape, /*has_memory=*/false).parameters.numel(); };
  EXPECT_EQ(count(built_in().resolve({.name = "clip-vision-h"})), 632'076'800);
  json large = small();
  large.update({{"hidden_size", 1664},
                {"intermediate_size", 8192},
                {"num_hidden_layers", 48},
                {"num_attention_heads", 16},
                {"image_size", 224},
                {"patch_size", 14},
                {"projection_dim", 1280}});
  EXPECT_EQ(count(shape_of(large)), 1'844'907'264) << "OpenCLIP-bigG, of SDXL's first IP-adapter";
}

TEST(ClipVision, ReadsAndWritesTheConfigOfTransformers) {
  for (const json& config : {small(), with(small(), "hidden_act", "gelu")}) {
    const ModelShape shape = shape_of(config);
    const json written = shape.architecture->hugging_face.to_json(shape);
    EXPECT_EQ(written["architectures"], config["architectures"]);
    EXPECT_EQ(written["model_type"], "clip_vision_model");
    EXPECT_EQ(shape_of(written), shape) << written.dump();
  }
  const ModelShape defaults = shape_of({{"model_type", "clip_vision_model"}});
  EXPECT_EQ(defaults.own.as<ClipVisionSizes>(),
            (ClipVisionSizes{.side = 224, .patch = 32, .projection = 512, .activation = "quick_gelu"}));
  EXPECT_EQ(image_encoder_of(defaults).features, 512);
  EXPECT_EQ(image_encoder_of(defaults).side, 224);
}

TEST(ClipVision, NormsPixelsAsClip) {
  const at::Tensor normed = normed_pixels(at::full({1, 3, 2, 2}, .5, at::kDouble));
  EXPECT_NEAR(normed[0][0][1][1].item<double>(), (.5 - .48145466) / .26862954, 1e-12);
  EXPECT_NEAR(normed[0][2][0][0].item<double>(), (.5 - .40821073) / .27577711, 1e-12);
}

TEST(ClipVision, RefusesWhatDoesNotFit) {
  const auto refusal = [](const char* key, const json& value) {
    return test::thrown_message([&] { shape_of(with(small(), key, value)); });
  };
  EXPECT_THAT(refusal("architectures", {"CLIPVisionModel"}), HasSubstr("must be of the class CLIPVisionModelWithProj"));
  EXPECT_THAT(refusal("image_size", 9), HasSubstr("side must be divisible by patch: got side 9, patch 4"));
  EXPECT_THAT(refusal("num_channels", 4), HasSubstr("num_channels of a CLIP vision encoder must be"));
  EXPECT_THAT(refusal("num_attention_heads", 5), HasSubstr("must be hidden, 32"));
  const Made made(shape_of(small()), /*has_memory=*/false);
  EXPECT_THAT(test::thrown_message([&] { image_embedding(made.model, at::zeros({1, 3, 8, 4})); }),
              HasSubstr("must be [rows, 3, 8, 8]: got [1, 3, 8, 4]"));
  EXPECT_THAT(test::thrown_message([] { image_encoder_of(built_in().resolve({.name = "gpt2-tiny"})); }),
              HasSubstr("needs an encoder of pictures: got a gpt2, which continues text"));
}

}  // namespace
}  // namespace colossal::models::clip_vision_test
