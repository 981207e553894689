// A UNet with an IP-adapter within it: values of diffusers 0.42.1 in fp64, gradients, names, and a ControlNet beside
// it.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "colossal/base/json.h"
#include "colossal/models/conditions.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/families/unet.h"
#include "colossal/models/registry.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/models/unet_image_prompt.h"
#include "colossal/nn/batch_step.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::image_prompt_test {
namespace {

using testing::HasSubstr;

constexpr int64_t kFeatures = 6, kTokens = 4;

/// The UNet that diffusers' values were computed with.
ModelShape base() {
  return unet_from_diffusers({{"block_out_channels", {32, 64}},
                              {"layers_per_block", 1},
                              {"down_block_types", {"CrossAttnDownBlock2D", "DownBlock2D"}},
                              {"up_block_types", {"UpBlock2D", "CrossAttnUpBlock2D"}},
                              {"cross_attention_dim", 16},
                              {"attention_head_dim", 4},
                              {"norm_num_groups", 8},
                              {"sample_size", 8}});
}
ModelShape small(double scale = 1) {
  return with_image_prompt(base(), {.features = kFeatures, .tokens = kTokens, .scale = scale});
}

/// Sets parameters to the values that the tensors of a folder had: those sorted by name have t = 0, 1, ... and the
/// elements .1 sin((i i mod 1009) + t), plus 1 in norms.
void set_folder(nn::Parameters& parameters, const std::vector<nn::ExternalName>& names) {
  std::map<std::string, double> offsets;
  for (const nn::ExternalName& name : names)
    for (const nn::ExternalRows& part : name.parts) offsets[part.name];
  double next = 0;
  for (auto& [name, offset] : offsets) offset = next++;
  for (const nn::ExternalName& name : names) {
    const at::Tensor value = parameters.at(name.ours).value.detach();
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

void set_all(Made& made) {
  const ModelShape& shape = made.model.shape;
  set_folder(made.parameters, unet_diffusers_names(base()));
  if (has_image_prompt(shape)) set_folder(made.parameters, image_prompt_names(shape));
  if (has_control(shape)) set_folder(made.parameters, control_folder_names(shape));
}

nn::ForwardContext step(bool has_image = true, bool has_control = false) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("noised", {sines(.3, .1, {1, 4, 8, 8}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {at::full({1}, 500, at::TensorOptions(at::kDouble)), {Dim::Row}});
  batch.add("text", {sines(.2, std::acos(0), {1, 5, 16}), {Dim::Row, Dim::Other, Dim::Feature}});  // cosines
  if (has_image) batch.add(kImageEmbedding, {sines(.4, .2, {1, kFeatures}), {Dim::Row, Dim::Other}});
  if (has_control) batch.add(kControl, {sines(.3, .1, {1, 3, 16, 16}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  return nn::step_of(batch);
}

at::Tensor prediction(const Made& made, const nn::ForwardContext& given) {
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  return predicted_picture(made.model.shape, run_stage(made.model, all, {}, given)[0], *given.batch);
}

double sum_of(const at::Tensor& t) { return t.sum().item<double>(); }

TEST(ImagePrompt, HasTheValuesOfDiffusers) {
  Made whole(small()), half(small(.5)), none(small(0)), plain(base());
  for (Made* made : {&whole, &half, &none, &plain}) set_all(*made);
  const at::NoGradGuard no_grad;
  const at::Tensor all = prediction(whole, step());
  EXPECT_NEAR(sum_of(all), 52.0371782449636, 1e-10);
  EXPECT_NEAR(sum_of(all.square()), 112.514232715556, 1e-9);
  EXPECT_NEAR(sum_of(prediction(half, step())), 51.792220610217, 1e-10);
  EXPECT_TRUE(at::equal(prediction(none, step()), prediction(plain, step(false))));
}

TEST(ImagePrompt, HasTheGradientOfFiniteDifferences) {
  Made made(small());
  set_all(made);
  const auto direction = [](const at::Tensor& value) {
    return at::arange(value.numel()).to(at::kDouble).mul(.7).cos().view(value.sizes());
  };
  prediction(made, step()).square().sum().backward();
  double along = 0;
  size_t count = 0;
  for (const nn::Parameter& p : made.parameters)
    if (is_of_image_prompt(p.name)) {
      ++count;
      EXPECT_TRUE(p.is_added) << p.name;
      ASSERT_TRUE(p.value.grad().defined()) << p.name;
      along += (p.value.grad() * direction(p.value.detach())).sum().item<double>();
    }
  EXPECT_EQ(count, image_prompt_names(small()).size());
  const at::NoGradGuard no_grad;
  const auto loss_at = [&](double distance) {
    for (const nn::Parameter& p : made.parameters)
      if (is_of_image_prompt(p.name)) p.value.detach().add_(direction(p.value.detach()), distance);
    return sum_of(prediction(made, step()).square());
  };
  constexpr double kStep = 1e-5;
  const double above = loss_at(kStep), below = loss_at(-2 * kStep);
  EXPECT_GT(std::abs(along), 1e-3);
  EXPECT_NEAR((above - below) / (2 * kStep) / along, 1, 1e-6);
}

// The ControlNet reads the text alone, as in diffusers: its residuals do not change with the picture.
TEST(ImagePrompt, LeavesAControlNetAsItIs) {
  const OwnControl control{.channels = {8, 16}};
  Made both(with_control(small(0), control)), alone(with_control(base(), control));
  Made shown(with_control(small(), control));
  for (Made* made : {&both, &alone, &shown}) set_all(*made);
  const at::NoGradGuard no_grad;
  const at::Tensor wanted = prediction(alone, step(false, true)), found = prediction(shown, step(true, true));
  EXPECT_TRUE(at::equal(prediction(both, step(true, true)), wanted));
  EXPECT_GT((found - wanted).abs().max().item<double>(), 1e-4);
  EXPECT_EQ(control_folder_names(shown.model.shape).size(), control_folder_names(alone.model.shape).size());
}

TEST(ImagePrompt, StartsFromTheKeysAndValuesOfTheText) {
  Made made(small());
  std::set<std::string> taken;
  for (const nn::Parameter& p : made.parameters) {
    const auto origin = image_prompt_origin(p.name);
    EXPECT_EQ(origin.has_value(), is_of_image_prompt(p.name) && p.name.starts_with("blocks.")) << p.name;
    if (!origin) continue;
    EXPECT_EQ(p.value.sizes(), made.parameters.at(*origin).value.sizes()) << p.name;
    EXPECT_TRUE(taken.insert(*origin).second) << *origin;
  }
  EXPECT_EQ(taken.size(), 4u);
}

TEST(ImagePrompt, HasTheNamesAndSizesOfThePublishedOnes) {
  const auto tensors = [](const char* preset, const OwnImagePrompt& prompt) {
    const ModelShape shape = with_image_prompt(built_in().resolve({.name = preset}), prompt);
    Made made(shape, /*has_memory=*/false);
    std::map<std::string, std::vector<int64_t>> found;
    for (const nn::ExternalName& name : image_prompt_names(shape))
      for (const nn::ExternalRows& rows : name.parts) {
        std::vector<int64_t> sizes = made.parameters.at(name.ours).spec.shape;
        sizes.front() /= static_cast<int64_t>(name.parts.size());
        found[rows.name] = sizes;
      }
    return found;
  };
  using Sizes = std::vector<int64_t>;
  const auto first = tensors("sd-1.5", {.features = 1024}), xl = tensors("sdxl", {.features = 1280});
  EXPECT_EQ(first.size(), 4u + 2 * 16);
  EXPECT_EQ(first.at("image_proj.proj.weight"), (Sizes{3072, 1024}));
  EXPECT_EQ(first.at("ip_adapter.1.to_k_ip.weight"), (Sizes{320, 768}));
  EXPECT_EQ(first.at("ip_adapter.13.to_v_ip.weight"), (Sizes{1280, 768})) << "up_blocks.1 follows down_blocks.2";
  EXPECT_EQ(first.at("ip_adapter.29.to_v_ip.weight"), (Sizes{320, 768})) << "the end of up_blocks.3";
  EXPECT_EQ(first.at("ip_adapter.31.to_k_ip.weight"), (Sizes{1280, 768})) << "the middle comes last";
  EXPECT_EQ(xl.size(), 4u + 2 * 70);
  EXPECT_EQ(xl.at("ip_adapter.139.to_v_ip.weight"), (Sizes{1280, 2048}));
  EXPECT_EQ(xl.at("image_proj.norm.weight"), (Sizes{2048}));
}

TEST(ImagePrompt, RefusesWhatDoesNotFit) {
  const ModelShape dit = built_in().resolve({.name = "dit-tiny"});
  EXPECT_THAT(test::thrown_message([&] { with_image_prompt(dit, {.features = 8}); }),
              HasSubstr("an IP-adapter must be for a unet: got a dit"));
  EXPECT_THAT(test::thrown_message([] { with_image_prompt(base(), {.features = 8, .tokens = 0}); }),
              HasSubstr("positive features and tokens: got 8 and 0"));
  EXPECT_FALSE(small() == base());
  EXPECT_TRUE(without_image_prompt(small()) == base());
  const Made made(with_image_prompt(base(), {.features = kFeatures + 1}));
  EXPECT_THAT(test::thrown_message([&] { prediction(made, step()); }),
              HasSubstr("image must be the embeddings of pictures, [B, 7]: got [1, 6]"));
}

}  // namespace
}  // namespace colossal::models::image_prompt_test
