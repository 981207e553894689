// Adapters of files for pipelines, on the UNet and the text encoder: both forms give the same weights.
#include "colossal/run/pipeline_adapters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>

#include "colossal/base/error.h"
#include "colossal/checkpoint/peft/pipeline_file.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/config.h"
#include "colossal/models/denoiser.h"
#include "colossal/models/registry.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/run/low_rank_adapter.h"
#include "support/thrown_message.h"

namespace colossal::run::pipeline_adapters_test {
namespace {

using checkpoint::PeftFolder;
using checkpoint::PeftLayer;
using testing::AllOf;
using testing::HasSubstr;

models::ModelShape shape_of(const std::string& preset) { return models::built_in().resolve({.name = preset}); }

/// Returns an adapter of rank 2 for each module, with the names that `name_of` gives them.
PeftFolder folder_of(const AdapterModules& modules, const std::function<std::string(const std::string&)>& name_of) {
  std::map<std::string, PeftLayer> layers;
  for (const LinearModule& module : modules.linear())
    layers[name_of(module.name)] = {
        .a = at::ones(module.shape_of_a(2)),
        .b = at::arange(module.part.count).to(at::kFloat).unsqueeze(1).expand({-1, 2}).contiguous(),
        .rank = 2,
        .scale = 0.5};
  return PeftFolder::of_pipeline({.rank = 2, .alpha = 1}, std::move(layers));
}

std::string with_prefix(const std::string& module) { return "unet." + module; }
std::string kohya(std::string module) {
  std::replace(module.begin(), module.end(), '.', '_');
  return "lora_unet_" + module;
}

TEST(PipelineAdapters, HaveEachLayerOfAUNetInBothForms) {
  const models::ModelShape shape = shape_of("sd-1.5-tiny");
  const AdapterModules modules(shape);
  const auto peft = adapters_of_part(folder_of(modules, with_prefix), modules, shape);
  const auto other = adapters_of_part(folder_of(modules, kohya), modules, shape);
  ASSERT_EQ(peft.size(), modules.linear().size());
  ASSERT_EQ(other.size(), modules.linear().size());
  std::set<size_t> found;
  for (const FolderAdapter& one : other) found.insert(one.module);
  EXPECT_EQ(found.size(), modules.linear().size());
}

TEST(PipelineAdapters, KnowConvolutionsAndLayersBetweenBlocks) {
  const AdapterModules modules(shape_of("sd-1.5-tiny"));
  const auto module = [&](const std::string& name) {
    for (const LinearModule& one : modules.linear())
      if (one.name == name) return one;
    ADD_FAILURE() << name;
    return LinearModule{};
  };
  EXPECT_THAT(module("down_blocks.0.resnets.0.conv1").kernel, testing::ElementsAre(3, 3));
  EXPECT_FALSE(module("down_blocks.0.resnets.0.conv1").between_blocks);
  EXPECT_THAT(module("down_blocks.0.attentions.0.proj_in").kernel, testing::ElementsAre(1, 1));
  for (const char* name : {"conv_in", "time_embedding.linear_1", "time_embedding.linear_2", "conv_out",
                           "down_blocks.0.attentions.0.proj_in", "down_blocks.0.downsamplers.0.conv"})
    EXPECT_TRUE(module(name).between_blocks && !module(name).only_merged) << name;
  EXPECT_FALSE(module("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k").between_blocks);
  for (const size_t index : modules.selected("adapter.targets", {"all-linear"}, {}))
    EXPECT_FALSE(modules.linear()[index].between_blocks) << modules.linear()[index].name;
}

// The folder has the gate of a GEGLU behind the other half.
TEST(PipelineAdapters, TurnOutputsIntoTheOrderOfTheModel) {
  const AdapterModules modules(shape_of("sd-1.5-tiny"));
  for (const LinearModule& module : modules.linear()) {
    const at::Tensor theirs = at::arange(module.part.count), ours = module.ours(theirs);
    EXPECT_TRUE(at::equal(module.theirs(ours), theirs)) << module.name;
    if (!module.name.ends_with("ff.net.0.proj")) continue;
    EXPECT_EQ(ours[0].item<int64_t>(), module.part.count / 2);
  }
}

TEST(PipelineAdapters, GoToTheTextEncoderThatTheyName) {
  const models::ModelShape text = shape_of("clip-text-tiny"), unet = shape_of("sd-1.5-tiny");
  const AdapterModules of_text(text), of_unet(unet);
  for (const std::string prefix :
       {"text_encoder.text_model.encoder.layers.0.self_attn.q_proj", "text_encoder.encoder.layers.0.self_attn.q_proj",
        "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
        "lora_te1_text_model_encoder_layers_0_self_attn_q_proj"}) {
    const LinearModule& q = of_text.linear().at(
        of_text.selected("adapter.targets", {"text_model.encoder.layers.0.self_attn.q_proj"}, {}).at(0));
    const PeftFolder folder = PeftFolder::of_pipeline(
        {.rank = 1, .alpha = 1}, {{prefix, {.a = at::ones({1, q.in}), .b = at::ones({q.part.count, 1}), .rank = 1}}});
    EXPECT_TRUE(has_text_adapters(folder));
    EXPECT_EQ(adapters_of_part(folder, of_text, text).size(), 1u) << prefix;
    EXPECT_TRUE(adapters_of_part(folder, of_unet, unet).empty());
  }
}

// Each text encoder of a pipeline with several gets its own, under the names of a first one.
TEST(PipelineAdapters, GoToTheSecondTextEncoder) {
  const models::ModelShape text = shape_of("clip-text-tiny"), unet = shape_of("sdxl-tiny");
  const std::string q = "self_attn_q_proj", peft = "text_encoder_2.text_model.encoder.layers.1.self_attn.q_proj",
                    kohya = "lora_te2_text_model_encoder_layers_0_" + q,
                    first = "lora_te1_text_model_encoder_layers_0_" + q;
  std::map<std::string, PeftLayer> layers;
  for (const std::string& name : {peft, kohya, first})
    layers[name] = {.a = at::full({1, 64}, name == first ? 1. : 2.), .b = at::ones({64, 1}), .rank = 1};
  const PeftFolder folder = PeftFolder::of_pipeline({.rank = 1, .alpha = 1}, layers);
  EXPECT_TRUE(has_text_adapters(folder) && has_text_adapters(folder, 0) && has_text_adapters(folder, 1));
  EXPECT_FALSE(has_text_adapters(folder, 2));
  EXPECT_TRUE(adapters_of_part(folder, AdapterModules(unet), unet).empty()) << "of other parts";
  const AdapterModules modules(text);
  for (const int64_t encoder : {0, 1}) {
    const auto found = adapters_of_part(adapters_of_encoder(folder, encoder), modules, text);
    ASSERT_EQ(found.size(), encoder == 0 ? 1u : 2u);
    for (const FolderAdapter& one : found) EXPECT_EQ(one.layer.a[0][0].item<double>(), encoder + 1.);
  }
}

TEST(PipelineAdapters, HaveDefaultTargetsInEachModelThatDraws) {
  const std::pair<const char*, const char*> targets[] = {
      {"flux-tiny", "to_out.0"}, {"stdit3-tiny", "kv_linear"}, {"open-sora-2-tiny", "attention.out"}};
  for (const auto& [preset, target] : targets) {
    const models::ModelShape shape = shape_of(preset);
    const auto keys =
        low_rank_row().complete(Config{}, LowRankKeys{.kind = "lora", .rank = 2}, shape).as<LowRankKeys>();
    EXPECT_THAT(keys.targets, testing::Contains(target)) << preset;
    EXPECT_EQ(test::thrown_message([&] { low_rank_adapter(keys, shape); }), "") << preset;
  }
}

TEST(PipelineAdapters, MayHaveMagnitudesOfLinearLayersAlone) {
  const models::ModelShape shape = shape_of("sd-1.5-tiny");
  const AdapterModules modules(shape);
  const auto adapters = [&](const std::string& name) {
    PeftFolder whole = folder_of(modules, with_prefix);
    PeftLayer layer = whole.layers().at("unet." + name);
    layer.magnitude = at::ones({layer.b.size(0)});
    const PeftFolder folder =
        PeftFolder::of_pipeline({.rank = 2, .alpha = 1, .magnitudes = true}, {{"unet." + name, layer}});
    return adapters_of_part(folder, modules, shape);
  };
  EXPECT_TRUE(adapters("mid_block.attentions.0.transformer_blocks.0.attn1.to_q").front().layer.magnitude.defined());
  EXPECT_THAT(test::thrown_message([&] { adapters("mid_block.resnets.0.conv1"); }),
              HasSubstr("adapters of convolutions must have no magnitudes: got some for unet.mid_block"));
}

// The text encoder is then within the denoiser.
TEST(PipelineAdapters, GoToBothPartsOfOneModel) {
  const models::ModelShape text = shape_of("clip-text-tiny");
  const models::ModelShape both = models::with_text_encoder(shape_of("sd-1.5-tiny"), text);
  const AdapterModules modules(both);
  for (const char* name : {"text_encoder.text_model.encoder.layers.0.self_attn.q_proj",
                           "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
                           "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"}) {
    const bool is_text = std::string(name).find("q_proj") != std::string::npos;
    const PeftLayer layer{.a = at::ones({1, 64}), .b = at::ones({64, 1}), .rank = 1};
    const auto found =
        adapters_of_part(PeftFolder::of_pipeline({.rank = 1, .alpha = 1}, {{name, layer}}), modules, both);
    ASSERT_EQ(found.size(), 1u) << name;
    const LinearModule& module = modules.linear()[found.front().module];
    EXPECT_EQ(module.weight.starts_with("blocks.0.attention.qkv"), is_text) << module.weight;
    EXPECT_EQ(index_in_part({}, module.name, AdapterModules(text), text).has_value(), is_text);
  }
}

TEST(PipelineAdapters, NeedTargetsInTheTextEncoderThatTheyTrain) {
  const models::ModelShape unet = shape_of("sd-1.5-tiny"),
                           both = models::with_text_encoder(unet, shape_of("clip-text-tiny"));
  const auto refusal = [](LowRankKeys keys, const models::ModelShape& shape) {
    keys.rank = 2, keys.text_encoder = true;
    return test::thrown_message([&] { low_rank_adapter(keys, shape); });
  };
  EXPECT_EQ(refusal({.kind = "lora", .targets = {"to_q", "q_proj"}}, both), "");
  EXPECT_THAT(refusal({.kind = "lora", .targets = {"to_q"}}, both), HasSubstr("add q_proj, k_proj, v_proj, out_proj"));
  EXPECT_THAT(refusal({.kind = "dora", .targets = {"q_proj"}}, both), HasSubstr("got kind dora"));
  EXPECT_THAT(refusal({.kind = "lora", .targets = {"to_q"}}, unet), HasSubstr("draws what captions say: got a unet"));
}

TEST(PipelineAdapters, RefuseLayersOfOtherModels) {
  const models::ModelShape shape = shape_of("sd-1.5-tiny");
  const AdapterModules modules(shape);
  const auto refusal = [&](const std::string& name, at::IntArrayRef a, at::IntArrayRef b) {
    const PeftLayer layer{.a = at::ones(a), .b = at::ones(b), .rank = 1};
    const PeftFolder folder =
        PeftFolder::of_pipeline({.rank = 1, .alpha = 1}, {{name, layer}, {"lora_unet_input_blocks_1", layer}});
    return test::thrown_message([&] { adapters_of_part(folder, modules, shape); });
  };
  EXPECT_THAT(refusal("unet.moon.to_q", {1, 4}, {4, 1}),
              AllOf(HasSubstr("unet.moon.to_q"), HasSubstr("lora_unet_input_blocks_1")));
  EXPECT_THAT(refusal("unet.mid_block.resnets.0.conv1", {1, 7, 3, 3}, {64, 1}), HasSubstr("another base"));
}

TEST(PipelineAdapters, HoldChangesAloneOfConvolutionsAndLayersBetweenBlocks) {
  const auto refusal = [](const char* preset, const LowRankKeys& keys) {
    return test::thrown_message([&] { low_rank_adapter(keys, shape_of(preset)); });
  };
  EXPECT_THAT(refusal("dit-tiny", {.kind = "lora", .rank = 2, .targets = {"proj_out_2"}}),
              HasSubstr("can be merged, but not trained"));
  for (const char* target : {"conv1", "linear_2"}) {
    EXPECT_THAT(refusal("sd-1.5-tiny", {.kind = "lora", .rank = 2, .dropout = 0.1, .targets = {target}}),
                HasSubstr("adapters of convolutions and of layers between blocks must be"));
    EXPECT_THAT(refusal("sd-1.5-tiny", {.kind = "dora", .rank = 2, .targets = {target}}), HasSubstr("got kind dora"));
  }
  EXPECT_EQ(refusal("sd-1.5-tiny", {.kind = "lora", .rank = 2, .targets = {"conv1", "to_q", "conv_in"}}), "");
}

/// Returns a loss of the prediction of a UNet of fp64.
at::Tensor loss_of(const models::Model& model) {
  using tensor::Dim;
  const auto sines = [](double step, at::IntArrayRef sizes) {
    return (at::arange(c10::multiply_integers(sizes), at::kDouble) * step).sin_().view(sizes);
  };
  tensor::Batch batch;
  batch.add("noised", {sines(0.3, {2, 4, 5, 7}), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  batch.add("times", {sines(0.9, {2}).mul_(500).abs_(), {Dim::Row}});
  batch.add("text", {sines(0.2, {2, 3, 64}), {Dim::Row, Dim::Other, Dim::Feature}});
  const nn::ForwardContext step = nn::step_of(batch);
  const models::Stage all{0, static_cast<int64_t>(model.blocks.size())};
  const at::Tensor y = models::predicted_picture(model.shape, models::run_stage(model, all, {}, step)[0], *step.batch);
  return (y * sines(0.7, y.sizes())).sum();
}

// Each layer, in both forms of the projections of a transformer. The derivative is along all matrices together.
TEST(PipelineAdapters, HaveTheGradientsOfFiniteDifferences) {
  for (const char* preset : {"sd-1.5-tiny", "sd-2.1-tiny"}) {
    const models::ModelShape shape = shape_of(preset);
    const nn::Adapter adapter = low_rank_adapter({.kind = "lora", .rank = 2, .alpha = 3, .targets = {"*"}}, shape);
    nn::Parameters parameters({},
                              {.dtype = at::kDouble, .treatment = adapter.treatment, .products = {adapter.product}});
    nn::SerialLayers layers(parameters);
    const models::Model model = models::make_model(shape, layers);
    std::vector<at::Tensor> trained, along;
    {
      const at::NoGradGuard no_grad;
      for (nn::Parameter& p : parameters) {
        p.value.add_((at::arange(p.value.numel(), at::kDouble) * 0.7).sin_().mul_(0.05).view_as(p.value));
        if (!p.treatment.trains) continue;
        trained.push_back(p.value);
        along.push_back((at::arange(p.value.numel(), at::kDouble) * 1.3).cos_().view_as(p.value));
      }
    }
    EXPECT_EQ(trained.size(), 2 * AdapterModules(shape).linear().size());
    loss_of(model).backward();
    double derivative = 0;
    for (size_t i = 0; i < trained.size(); ++i) {
      ASSERT_TRUE(trained[i].grad().defined() && trained[i].grad().abs().max().item<double>() > 0) << i;
      derivative += (trained[i].grad() * along[i]).sum().item<double>();
    }
    const auto moved = [&](double distance) {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < trained.size(); ++i) trained[i].add_(along[i], distance);
      return loss_of(model).item<double>();
    };
    constexpr double kStep = 1e-6;
    const double ahead = moved(kStep), behind = moved(-2 * kStep);
    EXPECT_NEAR((ahead - behind) / (2 * kStep), derivative, 1e-6 * std::abs(derivative)) << preset;
  }
}

}  // namespace
}  // namespace colossal::run::pipeline_adapters_test
