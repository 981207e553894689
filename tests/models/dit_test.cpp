// DiT against values computed with diffusers 0.42.1 in fp64; its counts, its first prediction, its form in diffusers.
#include "colossal/models/families/dit.h"

#include <ATen/ATen.h>
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

namespace colossal::models::dit_test {
namespace {

using testing::HasSubstr;

/// Returns the shape that diffusers' values were computed with.
ModelShape small(int64_t freq_shift = 1) {
  ModelShape shape = dit_from_diffusers({{"num_attention_heads", 4},
                                         {"attention_head_dim", 8},
                                         {"num_layers", 2},
                                         {"patch_size", 2},
                                         {"in_channels", 4},
                                         {"out_channels", 8},
                                         {"num_embeds_ada_norm", 10},
                                         {"norm_eps", 1e-6},
                                         {"sample_size", 8}});
  auto own = shape.own.as<DitSizes>();
  own.freq_shift = freq_shift;
  shape.own = own;
  return shape;
}

bool is_embedder(const std::string& name) { return name.starts_with("time.") || name.starts_with("classes."); }

/// Sets the parameters to the values that the tensors of diffusers' folder had: those sorted by name have t = 0, 1, ...
/// and the elements .1 sin((i i mod 1009) + t), plus 1 in norms. The embedders are those of `block`.
void set_values(Made& made, int64_t block) {
  std::map<std::string, double> offsets;
  for (const nn::ExternalName& name : dit_diffusers_names(made.model.shape))
    for (const nn::ExternalRows& part : name.parts) offsets[part.name];
  for (const nn::ExternalCopy& copy : dit_diffusers_copies(made.model.shape)) offsets[copy.name];
  double next = 0;
  for (auto& [name, offset] : offsets) offset = next++;
  for (const nn::ExternalName& name : dit_diffusers_names(made.model.shape)) {
    const at::Tensor value = made.parameters.at(name.ours).value.detach();
    const auto parts = static_cast<int64_t>(name.parts.size());
    for (int64_t i = 0; i < parts; ++i) {
      std::string theirs = name.parts[i].name;
      if (is_embedder(name.ours)) theirs.replace(theirs.find(".0."), 3, concat(".", block, "."));
      at::Tensor part = value.narrow(0, i * (value.size(0) / parts), value.size(0) / parts);
      const at::Tensor index = at::arange(part.numel(), at::TensorOptions(at::kLong));
      part.copy_((((index * index).remainder(1009)).to(at::kDouble) + offsets.at(theirs)).sin().view(part.sizes()) *
                 .1);
    }
  }
}

nn::ForwardContext picture_step() {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("noised", {sines(.3, .1, {1, 4, 8, 8}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {at::full({1}, 321, at::TensorOptions(at::kDouble)), {Dim::Row}});
  batch.add("classes", {at::full({1}, 3, at::TensorOptions(at::kLong)), {Dim::Row}});
  return nn::step_of(batch);
}

at::Tensor prediction(const Made& made, const nn::ForwardContext& step) {
  const Stage all{0, static_cast<int64_t>(made.model.blocks.size())};
  return predicted_picture(made.model.shape, run_stage(made.model, all, {}, step)[0]);
}

double number(const at::Tensor& t) { return t.item<double>(); }

double squares_of_gradients(const Made& made, const std::function<bool(const std::string&)>& counts) {
  double sum = 0;
  for (const nn::Parameter& p : made.parameters)
    if (counts(p.name)) sum += number(p.value.grad().square().sum());
  return sum;
}

// diffusers has embedders in each block. A second model has those of block 1 here.
TEST(Dit, HasTheValuesAndGradientsOfDiffusersWithEmbeddersInEveryBlock) {
  Made first(small()), second(small());
  set_values(first, 0);
  set_values(second, 1);
  const nn::ForwardContext step = picture_step();
  States states(2), others(2);
  first.model.embed.run(states, *step.batch, step);
  second.model.embed.run(others, *step.batch, step);
  first.model.blocks[0].run(states, step);
  others[0] = states[0];
  first.model.blocks[1].run(others, step);
  states[0] = others[0];
  first.model.norm.run(states, step);
  const at::Tensor y = predicted_picture(first.model.shape, states[0]);
  ASSERT_EQ(y.sizes(), at::IntArrayRef({1, 8, 8, 8}));
  EXPECT_NEAR(number(y.flatten()[0]), -.4296468455659, 1e-12);
  EXPECT_NEAR(number(y.sum()), -7.005293333555, 1e-11);
  EXPECT_NEAR(number(y.square().sum()), 69.08332274914, 1e-10);
  const at::Tensor loss = (y - sines(.17, .5, {1, 8, 8, 8})).square().mean();
  EXPECT_NEAR(number(loss), .655978753182, 1e-12);
  loss.backward();
  const double norm = std::sqrt(squares_of_gradients(first, [](const std::string&) { return true; }) +
                                squares_of_gradients(second, is_embedder));
  EXPECT_NEAR(norm, .6426550465279, 1e-12);
}

TEST(Dit, HasTheValuesOfDiffusersForEachShiftOfFrequencies) {
  for (const auto& [shift, sum] : {std::pair{1, -6.906811544533}, {0, -7.230211544016}}) {
    Made made(small(shift));
    set_values(made, 0);
    EXPECT_NEAR(number(prediction(made, picture_step()).sum()), sum, 1e-11) << shift;
  }
}

TEST(Dit, PredictsZeroBeforeTheFirstStep) {
  const Made made(small());
  const at::Tensor y = prediction(made, picture_step());
  EXPECT_TRUE(y.eq(0).all().item<bool>());
}

TEST(Dit, PredictsInFp32FromWeightsOf16Bits) {
  Made exact(small()), narrow(small(), /*has_memory=*/true, at::kBFloat16);
  set_values(exact, 0);
  set_values(narrow, 0);
  const at::Tensor want = prediction(exact, picture_step()), got = prediction(narrow, picture_step());
  EXPECT_EQ(got.scalar_type(), at::kFloat);
  EXPECT_LT(number((got - want).abs().max()), 0.02);
}

TEST(Dit, HasCostsByWhichPipelinesAreCut) {
  const tensor::Batch example =
      picture_step().batch->map([](const tensor::Field& field) { return field.tensor.to(at::kMeta); });
  const Costs costs = costs_of(small(), example, [](const Model& model, const States& end, const nn::ForwardContext&) {
    return predicted_picture(model.shape, end[0]).square().sum();
  });
  ASSERT_EQ(costs.blocks.size(), 2U);
  EXPECT_EQ(costs.blocks[0], costs.blocks[1]);
  const double products = 2.0 * 16 * (3 + 1 + 4 + 4) * 32 * 32 + 2.0 * 6 * 32 * 32;  // 16 tokens and the condition
  EXPECT_GE(costs.blocks[0], 3 * products);
  EXPECT_GT(costs.first, 0);
  EXPECT_GT(costs.last, 0);
}

TEST(Dit, HasTheParametersOfThePaper) {
  const auto count = [](const char* preset) {
    const Made made(built_in().resolve({.name = preset}), /*has_memory=*/false);
    return made.parameters.numel();
  };
  EXPECT_EQ(count("dit-s-2"), 32'865'056);
  EXPECT_EQ(count("dit-b-2"), 130'315'808);
  EXPECT_EQ(count("dit-l-2"), 457'840'672);
  EXPECT_EQ(count("dit-xl-2"), 674'834'720);
}

TEST(Dit, HasCopiesOfTheEmbeddersInEveryOtherBlockOfDiffusers) {
  const ModelShape shape = built_in().resolve({.name = "dit-xl-2"});
  const Made made(shape, /*has_memory=*/false);
  int64_t embedders = 0;
  for (const nn::Parameter& p : made.parameters)
    if (is_embedder(p.name)) embedders += p.spec.numel();
  EXPECT_EQ(made.parameters.numel() + 27 * embedders, 749'826'464);
  const std::vector<nn::ExternalCopy> copies = dit_diffusers_copies(shape);
  ASSERT_EQ(copies.size(), 27U * 5);
  EXPECT_EQ(copies.back().name, "transformer_blocks.27.norm1.emb.class_embedder.embedding_table.weight");
  EXPECT_EQ(copies.back().original, "transformer_blocks.0.norm1.emb.class_embedder.embedding_table.weight");
}

TEST(Dit, WritesTheConfigThatItReads) {
  for (const char* preset : {"dit-tiny", "dit-s-8"}) {
    ModelShape shape = built_in().resolve({.name = preset});
    const nlohmann::json j = dit_to_diffusers(shape);
    EXPECT_EQ(j["_class_name"], "DiTTransformer2DModel");
    EXPECT_EQ(dit_from_diffusers(j), shape) << j.dump();
  }
  EXPECT_EQ(small().own.as<DitSizes>().outputs(), 8);
}

TEST(Dit, RefusesConfigsWithWhichItComputesOtherNumbers) {
  const auto refused = [](const char* key, const nlohmann::json& value) {
    nlohmann::json j = dit_to_diffusers(built_in().resolve({.name = "dit-tiny"}));
    j[key] = value;
    return test::thrown_message([&] { dit_from_diffusers(j); });
  };
  EXPECT_EQ(refused("_name_or_path", "x"), "");
  EXPECT_THAT(refused("activation_fn", "geglu"), HasSubstr("activation_fn"));
  EXPECT_THAT(refused("attention_bias", false), HasSubstr("attention_bias"));
  EXPECT_THAT(refused("out_channels", 5), HasSubstr("out_channels must be in_channels"));
  EXPECT_THAT(refused("qk_norm", "rms"), HasSubstr("got qk_norm = \"rms\""));
  EXPECT_THAT(refused("_class_name", "UNet2DModel"), HasSubstr("must be DiTTransformer2DModel"));
  EXPECT_THAT(test::thrown_message([] { dit_to_diffusers(small(0)); }), HasSubstr("freq_shift = 1: got 0"));
}

TEST(Dit, RefusesSizesOffItsGrid) {
  const auto refused = [](const std::vector<std::string>& own) {
    return test::thrown_message([&] { built_in().resolve({.name = "dit-tiny", .own = own_keys(own)}); });
  };
  EXPECT_EQ(refused({"width=24"}), "");
  EXPECT_THAT(refused({"width=18"}), HasSubstr("width must be divisible by patch: got 18, patch 4; nearest: 20"));
  EXPECT_THAT(test::thrown_message([] { built_in().resolve({.name = "dit-tiny", .dropout = 0.1}); }),
              HasSubstr("a DiT has no dropout"));
}

}  // namespace
}  // namespace colossal::models::dit_test
