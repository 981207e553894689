// A UNet with a ControlNet within it: values of diffusers 0.42.1 in fp64, gradients, names and the form of its folder.
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
#include "colossal/models/unet_control.h"
#include "colossal/models/unet_control_net.h"
#include "colossal/nn/batch_step.h"
#include "models/made_model.h"
#include "support/thrown_message.h"

namespace colossal::models::control_net_test {
namespace {

using testing::HasSubstr;

/// The UNet and the ControlNet that diffusers' values were computed with.
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
ModelShape small(double scale = 1) { return with_control(base(), {.channels = {8, 16}, .scale = scale}); }

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

void set_both(Made& made) {
  set_folder(made.parameters, unet_diffusers_names(base()));
  if (has_control(made.model.shape)) set_folder(made.parameters, control_folder_names(made.model.shape));
}

tensor::Batch pictures() {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("noised", {sines(.3, .1, {1, 4, 8, 8}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {at::full({1}, 500, at::TensorOptions(at::kDouble)), {Dim::Row}});
  batch.add("text", {sines(.2, std::acos(0), {1, 5, 16}), {Dim::Row, Dim::Other, Dim::Feature}});  // cosines
  return batch;
}

nn::ForwardContext step(int64_t side = 16) {
  using tensor::Dim;
  tensor::Batch batch = pictures();
  batch.add(kControl, {sines(.3, .1, {1, 3, side, side}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  return nn::step_of(batch);
}

at::Tensor prediction(const Made& made, const nn::ForwardContext& given) {
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  return predicted_picture(made.model.shape, run_stage(made.model, all, {}, given)[0], *given.batch);
}

double sum_of(const at::Tensor& t) { return t.sum().item<double>(); }

TEST(ControlNet, HasTheValuesOfDiffusers) {
  Made made(small());
  set_both(made);
  const at::NoGradGuard no_grad;
  const nn::ForwardContext given = step();
  EXPECT_NEAR(sum_of(prediction(made, given)), 49.68374903323, 1e-10);
  const auto second_half = static_cast<int64_t>(unet_second_half(unet_parts(base().own.as<UnetSizes>())));
  const States halfway = run_stage(made.model, {0, second_half, true, false}, {}, given);
  const auto& states = made.model.states;
  const auto middle =
      std::find_if(states.begin(), states.end(), [](const State& one) { return one.name == "control.middle"; });
  EXPECT_NEAR(sum_of(halfway.at(middle - states.begin())), 2.584606184234, 1e-11);
}

TEST(ControlNet, ChangesNothingBeforeTheFirstStepAndByItsScale) {
  Made plain(base()), fresh(small()), none(small(0)), half(small(.5)), whole(small());
  set_both(plain);
  set_folder(fresh.parameters, unet_diffusers_names(base()));  // the ControlNet as it is drawn
  for (Made* made : {&none, &half, &whole}) set_both(*made);
  const at::NoGradGuard no_grad;
  const at::Tensor wanted = prediction(plain, nn::step_of(pictures()));
  EXPECT_TRUE(at::equal(prediction(fresh, step()), wanted));
  EXPECT_TRUE(at::equal(prediction(none, step()), wanted));
  const at::Tensor off = prediction(half, step());
  EXPECT_GT((off - wanted).abs().max().item<double>(), 1e-3);
  EXPECT_GT((off - prediction(whole, step())).abs().max().item<double>(), 1e-3);
}

TEST(ControlNet, HasTheGradientOfFiniteDifferences) {
  Made made(small());
  set_both(made);
  const auto direction = [](const at::Tensor& value) {
    return at::arange(value.numel()).to(at::kDouble).mul(.7).cos().view(value.sizes());
  };
  prediction(made, step()).square().sum().backward();
  double along = 0;
  size_t count = 0;
  for (const nn::Parameter& p : made.parameters)
    if (is_of_control(p.name)) {
      ++count;
      ASSERT_TRUE(p.value.grad().defined()) << p.name;
      along += (p.value.grad() * direction(p.value.detach())).sum().item<double>();
    }
  EXPECT_EQ(count, control_folder_names(small()).size());
  const at::NoGradGuard no_grad;
  const auto loss_at = [&](double distance) {
    for (const nn::Parameter& p : made.parameters)
      if (is_of_control(p.name)) p.value.detach().add_(direction(p.value.detach()), distance);
    return sum_of(prediction(made, step()).square());
  };
  constexpr double kStep = 1e-6;
  const double above = loss_at(kStep), below = loss_at(-2 * kStep);
  EXPECT_GT(std::abs(along), 1e-3);
  EXPECT_NEAR((above - below) / (2 * kStep) / along, 1, 1e-6);
}

// A trunk with the values of the UNet computes what that computes, so residuals of 1 are its skips.
TEST(ControlNet, StartsFromTheLayersOfTheUnet) {
  Made made(small());
  set_folder(made.parameters, unet_diffusers_names(base()));
  std::set<std::string> taken;
  for (const nn::Parameter& p : made.parameters) {
    if (!is_of_control(p.name)) continue;
    EXPECT_TRUE(p.is_added) << p.name;
    const auto origin = control_origin(p.name);
    if (!origin) continue;
    const nn::Parameter& from = made.parameters.at(*origin);
    ASSERT_EQ(p.value.sizes(), from.value.sizes()) << p.name;
    EXPECT_FALSE(is_of_control(*origin)) << p.name;
    EXPECT_TRUE(taken.insert(*origin).second) << *origin;
    p.value.detach().copy_(from.value.detach());
  }
  EXPECT_TRUE(taken.contains("pictures.weight") && taken.contains("time.linear_1.weight"));
  EXPECT_FALSE(control_origin("blocks.0.conv_1.weight"));
  const at::NoGradGuard no_grad;
  const auto second_half = static_cast<int64_t>(unet_second_half(unet_parts(base().own.as<UnetSizes>())));
  made.parameters.at(concat("blocks.", second_half - 1, ".control.zero.weight"))
      .value.detach()
      .copy_(at::eye(64, at::kDouble).view({64, 64, 1, 1}));
  const States halfway = run_stage(made.model, {0, second_half, true, false}, {}, step());
  const auto& states = made.model.states;
  for (size_t i = 0; i < states.size(); ++i)
    if (states[i].name == "control.middle") {
      EXPECT_TRUE(at::allclose(halfway.at(i), halfway.at(0), 1e-12, 1e-12));
    }
}

// Those of diffusers' ControlNetModel, counted on its meta device.
TEST(ControlNet, HasTheParametersOfPublishedOnes) {
  struct Row {
    const char* preset;
    int64_t parameters;
    size_t tensors;
  };
  std::set<std::string> theirs;
  for (const Row& row : {Row{"sd-2.1", 364'228'240, 340}, {"sdxl", 1'251'014'160, 844}, {"sd-1.5", 361'279'120, 340}}) {
    const ModelShape shape = with_control(built_in().resolve({.name = row.preset}), {.channels = {16, 32, 96, 256}});
    const Made made(shape, /*has_memory=*/false);
    int64_t count = 0;
    for (const nn::Parameter& p : made.parameters.declared()) count += is_of_control(p.name) ? p.spec.numel() : 0;
    EXPECT_EQ(count, row.parameters) << row.preset;
    theirs.clear();
    for (const nn::ExternalName& name : control_folder_names(shape))
      for (const nn::ExternalRows& rows : name.parts) theirs.insert(rows.name);
    EXPECT_EQ(theirs.size(), row.tensors) << row.preset;
    EXPECT_EQ(theirs.contains("add_embedding.linear_1.weight"), row.tensors == 844) << row.preset;
  }
  for (const char* name :
       {"controlnet_down_blocks.11.bias", "controlnet_mid_block.weight", "controlnet_cond_embedding.blocks.5.weight",
        "conv_in.weight", "time_embedding.linear_2.bias",
        "down_blocks.2.attentions.1.transformer_blocks.0.attn2.to_v.weight"})
    EXPECT_TRUE(theirs.contains(name)) << name;
  EXPECT_FALSE(theirs.contains("conv_out.weight"));
}

TEST(ControlNet, ReadsAndWritesItsConfig) {
  const nlohmann::json written = control_to_diffusers(small());
  EXPECT_EQ(written.at("_class_name"), "ControlNetModel");
  EXPECT_FALSE(written.contains("out_channels"));
  EXPECT_EQ(control_from_diffusers(written, base()).channels, (std::vector<int64_t>{8, 16}));
  const auto refusal = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json config = written;
    config[key] = value;
    return test::thrown_message([&] { control_from_diffusers(config, base()); });
  };
  EXPECT_THAT(
      refusal("cross_attention_dim", 24),
      HasSubstr("cross_attention_dim must be that of the model, 16: got 24; the ControlNet belongs to another"));
  EXPECT_THAT(refusal("block_out_channels", {32, 96}), HasSubstr("block_out_channels must be that of the model"));
  EXPECT_THAT(refusal("global_pool_conditions", true), HasSubstr("global_pool_conditions"));
  EXPECT_THAT(refusal("_class_name", "UNet2DConditionModel"), HasSubstr("ControlNetModel"));
  EXPECT_THAT(refusal("guess", 1), HasSubstr("guess"));
}

TEST(ControlNet, RefusesWhatDoesNotFit) {
  EXPECT_THAT(test::thrown_message([] { with_control(built_in().resolve({.name = "dit-tiny"}), {.channels = {8}}); }),
              HasSubstr("must be for a unet: got a dit"));
  EXPECT_FALSE(small() == base());
  EXPECT_TRUE(without_control(small()) == base());
  const Made made(small());
  EXPECT_THAT(test::thrown_message([&] { prediction(made, step(8)); }), HasSubstr("2 pixels a side for each cell"));
}

}  // namespace
}  // namespace colossal::models::control_net_test
