// ESM-2 against values computed with transformers 5.23, whose rotary positions and mask ratios were lifted to fp64; its
// masked tokens, padding, folders and refusals.
#include "colossal/models/families/esm2.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/built_in.h"
#include "colossal/models/config.h"
#include "colossal/models/esm2_layers.h"
#include "colossal/nn/attention_cache.h"
#include "colossal/nn/batch_step.h"
#include "made_model.h"
#include "support/golden_numbers.h"
#include "support/thrown_message.h"

namespace colossal::models::esm2_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// The config of the model that transformers' values were computed with.
json small() {
  return {{"model_type", "esm"},
          {"architectures", {"EsmForMaskedLM"}},
          {"vocab_size", 33},
          {"mask_token_id", 32},
          {"pad_token_id", 1},
          {"hidden_size", 24},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"intermediate_size", 50},
          {"max_position_embeddings", 40},
          {"hidden_dropout_prob", 0.0},
          {"attention_probs_dropout_prob", 0.0},
          {"layer_norm_eps", 1e-5},
          {"position_embedding_type", "rotary"},
          {"emb_layer_norm_before", false},
          {"token_dropout", true},
          {"is_folding_model", false}};
}

json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

/// Sets the parameters to the values that the tensors of the folder had: those sorted by name have t = 0, 1, ... and
/// the elements .1 sin((i i mod 1009) + t), plus 1 in the weights of norms.
void set_values(Made& made) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> tensors;
  for (const nn::ExternalName& name : made.model.shape.architecture->hugging_face.names(made.model.shape)) {
    const std::vector<at::Tensor> parts = made.parameters.at(name.ours).value.chunk(name.parts.size());
    for (size_t i = 0; i < parts.size(); ++i) tensors[name.parts[i].name] = parts[i];
  }
  int64_t next = 0;
  for (const auto& [name, part] : tensors) {
    const at::Tensor index = test::golden_count(part.numel());
    const bool is_norm = part.dim() == 1 && name.ends_with(".weight");
    part.copy_(((index * index).remainder(1009) + next++).sin().view(part.sizes()) * .1 + (is_norm ? 1 : 0));
  }
}

at::Tensor chains() { return at::tensor({0, 5, 9, 12, 20, 7, 2, 0, 32, 9, 32, 20, 1, 2}, at::kLong).view({2, 7}); }

at::Tensor positions_of(const at::Tensor& ids) {
  return at::arange(ids.size(1), at::kLong).expand_as(ids).contiguous();
}

struct Small : Made {
  explicit Small(const json& config = small()) : Made(built_in().shape_of(config)) { set_values(*this); }
  at::Tensor hidden(const nn::ForwardContext& step) const {
    return run_stage(model, {.last = model.shape.blocks(), .ends = false}, {}, step).at(0);
  }
  at::Tensor logits(const nn::ForwardContext& step) const {
    return model.head->logits(run_stage(model, {.last = model.shape.blocks()}, {}, step).at(0), step);
  }
};

nn::ForwardContext step_of(const at::Tensor& ids) { return nn::step_of(nn::token_batch(ids, positions_of(ids))); }

TEST(Esm2, HasTheValuesOfTransformers) {
  Small made;
  const nn::ForwardContext step = step_of(chains());
  EXPECT_NEAR(test::golden_sum(made.hidden(step)), 12.7134883864704, 1e-11);
  const at::Tensor logits = made.logits(step);
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({2, 7, 33}));
  EXPECT_NEAR(test::golden_sum(logits), 0.00750504413008724, 1e-11);
  EXPECT_NEAR(logits[1][3][4].item<double>(), 0.0480618333462563, 1e-12);
}

// Of chains without padding, because transformers gives its row of the embedding no gradient.
TEST(Esm2, HasTheGradientsOfTransformers) {
  Small made;
  for (nn::Parameter& parameter : made.parameters) parameter.value.requires_grad_();
  at::Tensor labels = at::full({2, 7}, -100, at::kLong);
  labels[1][1] = 4, labels[1][3] = 6;
  const nn::ForwardContext step = step_of(chains().masked_fill(chains().eq(1), 7));
  const at::Tensor end = run_stage(made.model, {.last = 2}, {}, step).at(0),
                   loss = made.model.head->loss_sum(end, labels, step) / 2;
  loss.backward();
  EXPECT_NEAR(loss.item<double>(), 3.59774841431433, 1e-12);
  const auto gradient = [&](const char* name) { return made.parameters.at(name).value.grad(); };
  EXPECT_NEAR(test::golden_sum(gradient("embedding.weight")), -1.14462165528096, 1e-10);
  EXPECT_NEAR(test::golden_sum(gradient("blocks.0.attention.qkv.weight").narrow(0, 0, 24)), -0.0130140017964402, 1e-11);
}

TEST(Esm2, NeverReadsPadding) {
  Small made;
  const at::Tensor mask = at::tensor({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, at::kDouble).view({2, 7});
  const nn::ForwardContext padded = esm2_step(mask, step_of(chains()));
  const at::Tensor row = made.logits(padded)[1].narrow(0, 0, 5);
  EXPECT_NEAR(test::golden_sum(row), -1.33014723759971, 1e-11);
  EXPECT_GT((row - made.logits(step_of(chains()))[1].narrow(0, 0, 5)).abs().max().item<double>(), 1e-6);
}

// Texts that share a row, as documents or as sequences of the step, get what each gets alone.
TEST(Esm2, CountsMasksOfEachTextAlone) {
  Small made;
  const at::Tensor row = chains().view({1, 14}), positions = positions_of(chains()).view({1, 14});
  nn::ForwardContext apart = nn::step_of(nn::token_batch(row, positions));
  apart.documents = at::cat({at::zeros({1, 7}, at::kLong), at::ones({1, 7}, at::kLong)}, 1);
  nn::ForwardContext sequences = nn::step_of(nn::token_batch(row, positions));
  sequences.parts.set(nn::Sequences{.lengths = {7, 7}});
  const at::Tensor alone = made.logits(step_of(chains())).view({1, 14, 33});
  EXPECT_LT((made.logits(apart) - alone).abs().max().item<double>(), 1e-12);
  EXPECT_LT((made.logits(sequences) - alone).abs().max().item<double>(), 1e-12);
}

TEST(Esm2, GivesATextOfMasksAFiniteResult) {
  Small made;
  EXPECT_TRUE(made.logits(step_of(at::full({1, 3}, 32, at::kLong))).isfinite().all().item<bool>());
}

TEST(Esm2, EmbedsMasksAsTokensWithoutTokenDropout) {
  Small made(with(small(), "token_dropout", false));
  const nn::ForwardContext step = step_of(chains());
  const at::Tensor rows = made.model.embed(*step.batch, step);
  EXPECT_TRUE(at::equal(rows[1][1], made.parameters.at("embedding.weight").value[32]));
}

// The same weights, in layers of whole rows.
TEST(Esm2, HasEqualBlocksOfWholeRows) {
  Small made;
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers layers(parameters);
  const Esm2WholeBlock block("blocks.0", {.hidden = 24, .heads = 4, .ffn = 50}, layers);
  {
    const at::NoGradGuard no_grad;
    for (nn::Parameter& p : parameters) p.value.copy_(made.parameters.at(p.name).value);
  }
  EXPECT_EQ(parameters.declared().size(), 12u);
  const at::Tensor x = sines(.3, .1, {2, 7, 24}), mask = at::ones({2, 7});
  mask[1][6] = 0;
  const nn::ForwardContext step = esm2_step(mask, step_of(chains()));
  States states{x};
  made.model.blocks[0].run(states, step);
  EXPECT_LT((block.forward(x, step) - states[0]).abs().max().item<double>(), 1e-13);
}

TEST(Esm2, HasTheParametersOfItsPresets) {
  const auto count = [](const char* preset) {
    return Made(built_in().resolve({.name = preset}), /*has_memory=*/false).parameters.numel();
  };
  EXPECT_EQ(count("esm2-8m"), 7'512'353);
  EXPECT_EQ(count("esm2-3b"), 2'839'004'193);
}

TEST(Esm2, ReadsAndWritesTheConfigOfTransformers) {
  const ModelShape shape = built_in().shape_of(small());
  const json written = shape.architecture->hugging_face.to_json(shape);
  EXPECT_EQ(built_in().shape_of(written), shape) << written.dump();
  const json read = small();
  for (const auto& [key, value] : read.items()) EXPECT_EQ(written[key], value) << key;
  EXPECT_EQ(shape.own.as<Esm2Sizes>(), (Esm2Sizes{.mask_token = 32}));
}

TEST(Esm2, RefusesFoldersOfOtherModels) {
  const auto refusal = [](const char* key, const json& value) {
    return test::thrown_message([&] { built_in().shape_of(with(small(), key, value)); });
  };
  EXPECT_THAT(refusal("position_embedding_type", "absolute"), HasSubstr("must be rotary: got absolute, as ESM-1b"));
  EXPECT_THAT(refusal("emb_layer_norm_before", true), HasSubstr("emb_layer_norm_before of an ESM-2 must be false"));
  EXPECT_THAT(refusal("mask_token_id", 33), HasSubstr("mask_token must be an id of the vocabulary of 33: got 33"));
  EXPECT_THAT(refusal("num_attention_heads", 8), HasSubstr("heads of an ESM-2 must have an even size"));
}

// Two architectures may read folders of one model type if each tells its own folders.
TEST(Esm2, LeavesFoldersThatItDoesNotMatchToOthers) {
  Registry registry = built_in();
  Architecture other = esm2_architecture();
  other.name = "other", other.presets = {};
  other.hugging_face.matches = nullptr;
  EXPECT_THAT(test::thrown_message([&] { registry.add(other); }), HasSubstr("set its `matches` in both"));
  other.hugging_face.matches = [](const json& config) { return config.value("is_folding_model", false); };
  registry = Registry().add(esm2_architecture());
  EXPECT_THAT(test::thrown_message([&] { registry.shape_of(with(small(), "is_folding_model", true)); }),
              HasSubstr("got esm, of a kind that no architecture reads"));
  registry.add(other);
  EXPECT_EQ(registry.shape_of(small()).architecture->name, "esm2");
  EXPECT_EQ(registry.shape_of(with(small(), "is_folding_model", true)).architecture->name, "other");
}

}  // namespace
}  // namespace colossal::models::esm2_test
