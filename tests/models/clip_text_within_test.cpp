// A UNet with its text encoder within it: predictions and gradients of the two models one after the other, and names.
#include "colossal/models/clip_text_within.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/models/text_encoder.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "support/thrown_message.h"

namespace colossal::models::with_text_encoder_test {
namespace {

using testing::HasSubstr;

struct Made {
  explicit Made(const ModelShape& shape, bool has_memory = true)
      : parameters({}, {.dtype = at::kDouble, .without_memory = !has_memory}) {
    nn::SerialLayers layers(parameters);
    model = make_model(shape, layers);
  }
  at::Tensor prediction(tensor::Batch batch) const {
    const nn::ForwardContext step = nn::step_of(std::move(batch));
    const Stage all{0, static_cast<int64_t>(model.blocks.size())};
    return predicted_picture(model.shape, run_stage(model, all, {}, step)[0], *step.batch);
  }
  nn::Parameters parameters;
  Model model;
};

ModelShape shape_of(const std::string& preset) { return built_in().resolve({.name = preset}); }
ModelShape joint() { return with_text_encoder(shape_of("sd-1.5-tiny"), shape_of("clip-text-tiny")); }

/// Returns the parameters by their names in the folders of a pipeline; a fused one by all of its names.
std::map<std::string, at::Tensor> by_folder_name(nn::Parameters& parameters, const std::vector<nn::ExternalName>& names,
                                                 const std::string& prefix) {
  std::map<std::string, at::Tensor> values;
  for (const nn::ExternalName& name : names) {
    std::string key;
    for (const nn::ExternalRows& part : name.parts) key += prefix + part.name + " ";
    EXPECT_TRUE(values.emplace(key, parameters.at(name.ours).value).second) << key;
  }
  return values;
}

tensor::Batch pictures_batch() {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("noised", {at::arange(2 * 4 * 8 * 8).to(at::kDouble).sin().view({2, 4, 8, 8}),
                       {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {at::tensor({500., 20.}, at::kDouble), {Dim::Row}});
  return batch;
}

TEST(WithTextEncoder, HasThePredictionAndTheGradientsOfBothModels) {
  using tensor::Dim;
  const ModelShape unet = shape_of("sd-1.5-tiny"), clip = shape_of("clip-text-tiny");
  Made whole(joint()), of_unet(unet), of_text(clip);
  std::map<std::string, at::Tensor> apart =
      by_folder_name(of_unet.parameters, unet.architecture->diffusers.names(unet), "");
  apart.merge(by_folder_name(of_text.parameters, clip.architecture->hugging_face.names(clip), kOfTextEncoder));
  const auto together =
      by_folder_name(whole.parameters, whole.model.shape.architecture->diffusers.names(whole.model.shape), "");
  ASSERT_EQ(together.size(), apart.size());
  double count = 0;
  for (const auto& [name, value] : together) {
    value.detach().copy_((at::arange(value.numel()).to(at::kDouble) + ++count).sin().view(value.sizes()) * .1);
    apart.at(name).detach().copy_(value.detach());
  }
  const at::Tensor ids = at::arange(2 * 77).view({2, 77});
  tensor::Batch told = pictures_batch(), encoded = pictures_batch();
  told.add("ids", {ids, {Dim::Row, Dim::Other}});
  encoded.add("text", {text_states(of_text.model, ids), {Dim::Row, Dim::Other, Dim::Feature}});
  const at::Tensor got = whole.prediction(told), want = of_unet.prediction(encoded);
  EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-12));
  got.square().sum().backward();
  want.square().sum().backward();
  double along = 0;  // the gradient of the encoder's parameters in one direction
  const auto direction_of = [](const at::Tensor& value) {
    return at::arange(value.numel()).to(at::kDouble).mul(.7).cos().view(value.sizes());
  };
  for (const auto& [name, value] : together) {
    if (name.starts_with(kOfTextEncoder)) {
      along += (value.grad() * direction_of(value)).sum().item<double>();
      continue;
    }
    const at::Tensor gradient = apart.at(name).grad();
    EXPECT_TRUE(at::allclose(value.grad(), gradient, 1e-9, 1e-9 * (1 + gradient.abs().max().item<double>()))) << name;
  }
  const at::NoGradGuard no_grad;
  const auto loss_at = [&](double distance) {
    for (const auto& [name, value] : together)
      if (name.starts_with(kOfTextEncoder)) value.detach().add_(direction_of(value), distance);
    return whole.prediction(told).square().sum().item<double>();
  };
  constexpr double kStep = 1e-6;
  const double above = loss_at(kStep), below = loss_at(-2 * kStep);
  EXPECT_GT(std::abs(along), 1e-3);
  EXPECT_NEAR((above - below) / (2 * kStep) / along, 1, 1e-5);
}

TEST(WithTextEncoder, HasAnotherShapeUntilItIsTakenOut) {
  const ModelShape unet = shape_of("sd-1.5-tiny"), whole = joint();
  EXPECT_FALSE(whole == unet);
  EXPECT_EQ(text_encoder_blocks(whole), 2);
  EXPECT_EQ(text_encoder_blocks(unet), 0);
  EXPECT_EQ(whole.layers, unet.layers + 2);
  EXPECT_TRUE(without_text_encoder(whole) == unet);
  EXPECT_THAT(Made(whole, /*has_memory=*/false).model.fields, testing::ElementsAre("noised", "times", "ids"));
}

TEST(WithTextEncoder, RefusesModelsThatDoNotFit) {
  const auto refusal = [](const std::string& denoiser, const std::string& text) {
    return test::thrown_message([&] { with_text_encoder(shape_of(denoiser), shape_of(text)); });
  };
  EXPECT_THAT(refusal("dit-tiny", "clip-text-tiny"), HasSubstr("must read captions: got a dit"));
  EXPECT_THAT(refusal("sd-1.5-tiny", "clip-l"), HasSubstr("64 features, which the denoiser reads: got 768"));
  EXPECT_THAT(refusal("sd-1.5-tiny", "gpt2-tiny"), HasSubstr("must be a clip_text"));
}

}  // namespace
}  // namespace colossal::models::with_text_encoder_test
