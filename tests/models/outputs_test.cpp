// Models that continue text with a head of outputs in its place: reward models, as layers and as folders.
#include "colossal/nn/outputs.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/decoder.h"
#include "colossal/models/folder_names.h"
#include "colossal/models/registry.h"
#include "colossal/models/shape_parts.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "support/thrown_message.h"

namespace colossal::models::outputs_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Presets of all families that continue text and have folders.
constexpr const char* kPresets[] = {"gpt2-tiny",  "llama-tiny",     "mistral-7b",   "mixtral-tiny", "pythia-tiny",
                                    "gptj-6b",    "falcon-7b",      "opt-350m",     "bloom-tiny",   "gemma2-tiny",
                                    "qwen3-tiny", "qwen3-moe-tiny", "qwen2.5-tiny", "phi3-tiny",    "deepseek-tiny"};

ModelShape scoring(const std::string& preset) { return with_outputs(built_in().resolve({.name = preset}), 1); }

TEST(ModelOutputs, MakeFoldersForSequenceClassificationAndBack) {
  for (const char* name : kPresets) {
    const ModelShape shape = scoring(name);
    const nlohmann::json config = shape.architecture->hugging_face.to_json(shape);
    EXPECT_THAT(config["architectures"][0].get<std::string>(), testing::EndsWith("ForSequenceClassification")) << name;
    EXPECT_THAT(config["architectures"][0].get<std::string>(), testing::Not(HasSubstr("LM"))) << name;
    EXPECT_EQ(config["id2label"].size(), 1u) << name;
    EXPECT_EQ(config["tie_word_embeddings"], false) << name;
    const ModelShape read = built_in().shape_of(config);
    EXPECT_EQ(read.outputs(), 1) << name;
    EXPECT_FALSE(read.tied) << name;
    EXPECT_TRUE(read.task().scores()) << name;
    bool has_score = false;
    for (const nn::ExternalName& one : shape.architecture->hugging_face.names(shape)) {
      if (one.ours == "head.score.weight") EXPECT_THAT(one.parts, ElementsAre("score.weight"));
      has_score = has_score || one.ours == "head.score.weight";
      EXPECT_FALSE(one.ours.starts_with("head.weight") || one.ours.starts_with("head.bias")) << name;
    }
    EXPECT_TRUE(has_score) << name;
    EXPECT_TRUE(copies_in_folder(shape).empty()) << name;
  }
}

TEST(ModelOutputs, EndTheModelInFp32AtZero) {
  ModelShape shape = scoring("llama-tiny");
  nn::Parameters parameters({}, {.dtype = at::kBFloat16});
  nn::SerialLayers layers(parameters);
  const Model model = make_model(shape, layers);
  EXPECT_EQ(model.head, nullptr);
  const at::Tensor ids = at::arange(12, at::kLong).view({2, 6});
  const auto step = nn::step_of(nn::token_batch(ids, at::arange(6, at::kLong).repeat({2, 1})));
  const States end = run_stage(model, {0, shape.layers, true, true}, {}, step);
  EXPECT_EQ(end[0].sizes(), (std::vector<int64_t>{2, 6, 1}));
  EXPECT_EQ(end[0].scalar_type(), at::kFloat);
  EXPECT_EQ(end[0].abs().max().item<float>(), 0);
}

TEST(ModelOutputs, ReplaceNoOtherHeads) {
  EXPECT_THAT(test::thrown_message([] { scoring("bert-tiny"); }),
              HasSubstr("a head of outputs must replace the head of a model that continues text: got a bert, which "
                        "fills in masked tokens"));
  EXPECT_THAT(test::thrown_message([] { scoring("t5-small"); }), HasSubstr("generates a target text"));
  const ModelShape shape = built_in().resolve({.name = "llama-tiny"});
  EXPECT_EQ(with_outputs(shape, 0), shape);
  EXPECT_FALSE(scoring("llama-tiny") == shape);
}

// A folder of several labels is a classifier, whose outputs no reward model has.
TEST(ModelOutputs, CountTheLabelsOfAFolder) {
  nlohmann::json config = scoring("llama-tiny").architecture->hugging_face.to_json(scoring("llama-tiny"));
  config.erase("id2label");
  config.erase("label2id");
  EXPECT_EQ(built_in().shape_of(config).outputs(), 2) << "the default of transformers";
  config["num_labels"] = 1;
  EXPECT_EQ(built_in().shape_of(config).outputs(), 1);
  config["architectures"] = {"LlamaForCausalLM"};
  EXPECT_EQ(built_in().shape_of(config).outputs(), 0);
}

TEST(ModelOutputs, HaveNoMultiTokenLayers) {
  ModelConfig config{.name = "deepseek-tiny", .own = own_keys({"multi_token_layers=1"})};
  const ModelShape shape = built_in().resolve(config);
  ASSERT_EQ(shape.part<MultiTokenSizes>().layers, 1);
  const ModelShape scores = with_outputs(shape, 1);
  EXPECT_EQ(scores.part<MultiTokenSizes>().layers, 0);
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  EXPECT_EQ(make_model(scores, layers).tokens_ahead, 0);
}

// A folder of the model has no head of values, and its other weights are drawn as without one.
TEST(ModelValues, StandBesideTheHeadOfTokens) {
  for (const char* name : kPresets) {
    const ModelShape plain = built_in().resolve({.name = name}), shape = with_values(plain);
    EXPECT_FALSE(shape == plain) << name;
    EXPECT_EQ(with_values(shape, false), plain) << name;
    EXPECT_EQ(with_outputs(shape, 1).has_values(), false) << name;
    EXPECT_TRUE(shape.task().continues()) << name;
    EXPECT_EQ(shape.architecture->hugging_face.names(shape).size(),
              plain.architecture->hugging_face.names(plain).size())
        << name;
  }
  const ModelShape plain = built_in().resolve({.name = "llama-tiny"});
  nn::Parameters parameters({}, {.dtype = at::kBFloat16}), others({}, {.dtype = at::kBFloat16});
  nn::SerialLayers layers(parameters), other_layers(others);
  const Model model = make_model(with_values(plain), layers), other = make_model(plain, other_layers);
  EXPECT_EQ(other.values, nullptr);
  for (const nn::Parameter& p : others) EXPECT_TRUE(at::equal(parameters.at(p.name).value, p.value)) << p.name;
  const at::Tensor hidden = at::randn({2, 6, plain.hidden});
  const at::Tensor values = model.values->forward(hidden, {});
  EXPECT_EQ(values.sizes(), (std::vector<int64_t>{2, 6, 1}));
  EXPECT_EQ(values.scalar_type(), at::kFloat);
  EXPECT_EQ(values.abs().max().item<float>(), 0);
}

TEST(ModelValues, NeedAModelThatContinuesTextAndMakesThem) {
  EXPECT_THAT(test::thrown_message([] { with_values(built_in().resolve({.name = "bert-tiny"})); }),
              HasSubstr("a head of values must stand beside the head of a model that continues text: got a bert"));
  const auto without = std::make_shared<Architecture>(*built_in().at("llama"));
  without->make = [](const ModelShape& shape, nn::Layers& layers) {
    return built_in().at("llama")->make(with_values(shape, false), layers);
  };
  ModelShape shape = with_values(built_in().resolve({.name = "llama-tiny"}));
  shape.architecture = without;
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  EXPECT_THAT(test::thrown_message([&] { make_model(shape, layers); }),
              HasSubstr("a model with a head of values must make it: got none from llama"));
}

}  // namespace
}  // namespace colossal::models::outputs_test
