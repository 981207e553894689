// Adapters of files for pipelines, on the UNet and the text encoder: both forms give the same weights.
#include "colossal/run/pipeline_adapters.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "colossal/base/error.h"
#include "colossal/checkpoint/peft/pipeline_file.h"
#include "colossal/models/clip_text_within.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
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

TEST(PipelineAdapters, KnowTheConvolutionsAndTheLayersThatAreOnlyMerged) {
  const AdapterModules modules(shape_of("sd-1.5-tiny"));
  const auto module = [&](const std::string& name) {
    for (const LinearModule& one : modules.linear())
      if (one.name == name) return one;
    ADD_FAILURE() << name;
    return LinearModule{};
  };
  EXPECT_THAT(module("down_blocks.0.resnets.0.conv1").kernel, testing::ElementsAre(3, 3));
  EXPECT_FALSE(module("down_blocks.0.resnets.0.conv1").only_merged);
  EXPECT_THAT(module("down_blocks.0.attentions.0.proj_in").kernel, testing::ElementsAre(1, 1));
  EXPECT_TRUE(module("down_blocks.0.attentions.0.proj_in").only_merged);
  EXPECT_TRUE(module("time_embedding.linear_1").only_merged);
  EXPECT_FALSE(module("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k").only_merged);
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
        "lora_te_text_model_encoder_layers_0_self_attn_q_proj"}) {
    const LinearModule& q = of_text.linear().at(
        of_text.selected("adapter.targets", {"text_model.encoder.layers.0.self_attn.q_proj"}, {}).at(0));
    const PeftFolder folder = PeftFolder::of_pipeline(
        {.rank = 1, .alpha = 1}, {{prefix, {.a = at::ones({1, q.in}), .b = at::ones({q.part.count, 1}), .rank = 1}}});
    EXPECT_TRUE(has_text_adapters(folder));
    EXPECT_EQ(adapters_of_part(folder, of_text, text).size(), 1u) << prefix;
    EXPECT_TRUE(adapters_of_part(folder, of_unet, unet).empty());
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
    EXPECT_EQ(index_in_part(module.name, AdapterModules(text), text).has_value(), is_text);
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

TEST(PipelineAdapters, TrainNoLayersThatAreOnlyMerged) {
  const models::ModelShape shape = shape_of("sd-1.5-tiny");
  EXPECT_THAT(
      test::thrown_message([&] { low_rank_adapter({.kind = "lora", .rank = 2, .targets = {"proj_in"}}, shape); }),
      HasSubstr("can be merged, but not trained"));
  EXPECT_THAT(test::thrown_message(
                  [&] { low_rank_adapter({.kind = "lora", .rank = 2, .dropout = 0.1, .targets = {"conv1"}}, shape); }),
              HasSubstr("adapters of convolutions must be"));
  EXPECT_EQ(
      test::thrown_message([&] { low_rank_adapter({.kind = "lora", .rank = 2, .targets = {"conv1", "to_q"}}, shape); }),
      "");
}

}  // namespace
}  // namespace colossal::run::pipeline_adapters_test
