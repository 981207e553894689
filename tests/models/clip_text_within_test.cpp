// A UNet with its text encoder within it: predictions and gradients of the two models one after the other, and names.
#include "colossal/models/clip_text_within.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "colossal/models/caption_parts.h"
#include "colossal/models/clip_text_words.h"
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

/// Fills the parameters that both have, by their names in the folders of a pipeline, with the same values.
void fill_alike(const std::map<std::string, at::Tensor>& together, const std::map<std::string, at::Tensor>& apart) {
  double count = 0;
  for (const auto& [name, value] : together) {
    value.detach().copy_((at::arange(value.numel()).to(at::kDouble) + ++count).sin().view(value.sizes()) * .1);
    apart.at(name).detach().copy_(value.detach());
  }
}

/// Returns ids of two captions with the end token 257; the second one is empty.
at::Tensor ids_with_end() {
  at::Tensor ids = at::arange(2 * 77).view({2, 77}).clone();
  ids.select(1, 0).fill_(256);
  ids[0][9] = 257, ids[1][1] = 257;
  return ids;
}

/// Compares the gradients of an encoder, which `values` has, with finite differences in one direction.
void expect_gradients(const Made& whole, const tensor::Batch& told, const std::map<std::string, at::Tensor>& values,
                      int64_t encoder) {
  const at::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  double along = 0;
  const auto move = [&](double distance) {
    for (const auto& [name, value] : values) {
      if (text_encoder_of_name(name) != encoder) continue;
      const at::Tensor direction = at::arange(value.numel()).to(at::kDouble).mul(.7).cos().view(value.sizes());
      value.detach().add_(direction, distance);
      if (distance > 0) along += (value.grad() * direction).sum().item<double>();
    }
    return whole.prediction(told).square().sum().item<double>();
  };
  const double above = move(kStep), below = move(-2 * kStep);
  for (const auto& [name, value] : values)
    if (text_encoder_of_name(name) == encoder)
      value.detach().add_(at::arange(value.numel()).to(at::kDouble).mul(.7).cos().view(value.sizes()), kStep);
  EXPECT_GT(std::abs(along), 1e-5);
  EXPECT_NEAR((above - below) / (2 * kStep) / along, 1, 1e-5) << encoder;
}

// SDXL: the states of both encoders, joined, and the pooled text of the second, which the vector of the time gets.
TEST(WithTextEncoder, HasThePredictionAndTheGradientsOfThreeModels) {
  using tensor::Dim;
  const ModelShape unet = shape_of("sdxl-tiny"), first = shape_of("clip-text-tiny"),
                   second = shape_of("clip-text-tiny-projected");
  const DenoiserSizes sizes = denoiser_of(unet);
  for (const bool zeros : {false, true}) {
    Made whole(with_text_encoders(unet, first, second, zeros)), of_unet(unet), of_first(first), of_second(second);
    std::map<std::string, at::Tensor> apart =
        by_folder_name(of_unet.parameters, unet.architecture->diffusers.names(unet), "");
    const auto names_of = [](const ModelShape& text) { return text.architecture->hugging_face.names(text); };
    apart.merge(by_folder_name(of_first.parameters, names_of(first), kOfTextEncoder));
    apart.merge(by_folder_name(of_second.parameters, names_of(second), kOfSecondTextEncoder));
    const auto together =
        by_folder_name(whole.parameters, whole.model.shape.architecture->diffusers.names(whole.model.shape), "");
    EXPECT_GT(apart.size(), together.size()) << "the last block of the first encoder is not there";
    fill_alike(together, apart);
    const at::Tensor ids = ids_with_end(), mask = at::ones_like(ids),
                     numbers = at::arange(12, at::kDouble).view({2, 6});
    tensor::Batch encoded = joined_captions(sizes, {read_caption(sizes.captions[0], of_first.model, ids, mask),
                                                    read_caption(sizes.captions[1], of_second.model, ids, mask)}),
                  told = pictures_batch();
    if (zeros) {
      const at::Tensor is_told = at::tensor({1., 0.}, at::kDouble);
      encoded =
          caption_batch(encoded.at("text") * is_told.view({2, 1, 1}), encoded.at("pooled") * is_told.view({2, 1}));
    }
    const tensor::Batch pictures = pictures_batch();
    for (const auto& [name, field] : pictures.fields()) encoded.add(name, field);
    for (const char* name : {"ids", "ids_2"}) told.add(name, {ids, {Dim::Row, Dim::Other}});
    for (tensor::Batch* batch : {&told, &encoded}) batch->add("sizes", {numbers, {Dim::Row, Dim::Other}});
    const at::Tensor got = whole.prediction(told), want = of_unet.prediction(encoded);
    EXPECT_TRUE(at::allclose(got, want, 1e-12, 1e-12));
    got.square().sum().backward();
    want.square().sum().backward();
    for (const auto& [name, value] : together) {
      if (text_encoder_of_name(name) >= 0) continue;
      const at::Tensor gradient = apart.at(name).grad();
      EXPECT_TRUE(at::allclose(value.grad(), gradient, 1e-9, 1e-9 * (1 + gradient.abs().max().item<double>()))) << name;
    }
    for (const int64_t encoder : {0, 1}) expect_gradients(whole, told, together, encoder);
  }
  EXPECT_THAT(test::thrown_message([&] { with_text_encoders(unet, first, first, false); }),
              HasSubstr("with a projection"));
}

// Old folders pool the token of the largest id, and a learned word has a larger one than the end token.
TEST(WithTextEncoder, ReadsACaptionThatBeginsWithALearnedWord) {
  using tensor::Dim;
  const ModelShape unet = shape_of("sdxl-tiny"), first = with_learned_words(shape_of("clip-text-tiny"), 1);
  const ModelShape second =
      with_learned_words(built_in().resolve({.name = "clip-text-tiny-projected", .own = own_keys({"end_id=2"})}), 1);
  Made plain(with_text_encoders(unet, first, second, false)), zeros(with_text_encoders(unet, first, second, true));
  const auto named = [](Made& made) {
    return by_folder_name(made.parameters, made.model.shape.architecture->diffusers.names(made.model.shape), "");
  };
  fill_alike(named(plain), named(zeros));
  const int64_t word = 259, end = 258;
  tensor::Batch told = pictures_batch();
  at::Tensor ids = at::zeros({2, 77}, at::kLong);
  ids.select(1, 0).fill_(256);
  ids[0][1] = word, ids[0][2] = end, ids[1][1] = end;
  for (const char* name : {"ids", "ids_2"}) told.add(name, {ids, {Dim::Row, Dim::Other}});
  told.add("sizes", {at::ones({2, 6}, at::kDouble), {Dim::Row, Dim::Other}});
  const at::Tensor want = plain.prediction(told), got = zeros.prediction(told);
  EXPECT_TRUE(at::allclose(got[0], want[0], 1e-12, 1e-12)) << "a word";
  EXPECT_FALSE(at::allclose(got[1], want[1], 1e-6, 1e-6)) << "the empty caption";
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
