// CLIP's text encoder against values computed with transformers 5.23 in fp64; its counts, its folders, its refusals.
#include "colossal/models/families/clip_text.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "colossal/models/text_encoder.h"
#include "colossal/nn/batch_step.h"
#include "colossal/nn/serial_layers.h"
#include "support/thrown_message.h"

namespace colossal::models::clip_text_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

struct Made {
  explicit Made(const ModelShape& shape, bool has_memory = true)
      : parameters({}, {.dtype = at::kDouble, .without_memory = !has_memory}) {
    nn::SerialLayers layers(parameters);
    model = make_model(shape, layers);
  }
  nn::Parameters parameters;
  Model model;
};

/// The config of the model that transformers' values were computed with.
json small() {
  return {{"model_type", "clip_text_model"},
          {"architectures", {"CLIPTextModelWithProjection"}},
          {"vocab_size", 100},
          {"hidden_size", 32},
          {"intermediate_size", 64},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"max_position_embeddings", 16},
          {"projection_dim", 24},
          {"eos_token_id", 99}};
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

Made made_of(const json& config) {
  Made made(shape_of(config));
  set_values(made);
  return made;
}

at::Tensor caption() { return at::tensor({98, 5, 17, 42, 99, 99}, at::kLong).unsqueeze(0); }

double number(const at::Tensor& t) { return t.item<double>(); }

TEST(ClipText, HasTheValuesOfTransformers) {
  const Made made = made_of(small());
  const at::Tensor last = text_states(made.model, caption());
  ASSERT_EQ(last.sizes(), at::IntArrayRef({1, 6, 32}));
  EXPECT_NEAR(number(last.flatten()[0]), -.5055419871288, 1e-12);
  EXPECT_NEAR(number(last.sum()), 2.222978297645, 1e-11);
  EXPECT_NEAR(number(last.square().sum()), 197.1032790756, 1e-9);
  const at::Tensor projected = pooled_state(made.model, caption());
  ASSERT_EQ(projected.sizes(), at::IntArrayRef({1, 24}));
  EXPECT_NEAR(number(projected.sum()), -2.805947104914, 1e-11);
  EXPECT_NEAR(number(hidden_before_norm(made.model, caption()).sum()), -3.034854572928, 1e-11);
}

// The values tell the activations apart, so a wrong one cannot go unnoticed.
TEST(ClipText, HasOtherValuesWithTheExactGelu) {
  const Made made = made_of(with(small(), "hidden_act", "gelu"));
  EXPECT_GT(std::abs(number(text_states(made.model, caption()).sum()) - 2.222978297645), 1e-6);
}

TEST(ClipText, ReadsPaddingAsTokensAndNeverLaterOnes) {
  const Made made = made_of(small());
  const at::Tensor one = at::tensor({98, 5, 99, 99, 99}, at::kLong).unsqueeze(0);
  const at::Tensor other = at::tensor({98, 5, 99, 7, 99}, at::kLong).unsqueeze(0);
  const at::Tensor a = text_states(made.model, one), b = text_states(made.model, other);
  EXPECT_TRUE(at::equal(a.narrow(1, 0, 3), b.narrow(1, 0, 3))) << "causal";
  EXPECT_FALSE(at::allclose(a.select(1, 4), b.select(1, 4))) << "a pad is read";
}

TEST(ClipText, SkipsTheLastBlocksBeforeTheNorm) {
  Made made = made_of(small());
  const auto value = [&](const char* name) { return made.parameters.at(name).value; };
  const at::Tensor before = hidden_before_norm(made.model, caption()), skipped = text_states(made.model, caption(), 1);
  const at::Tensor wanted = at::layer_norm(before, {32}, value("norm.weight"), value("norm.bias"), 1e-5);
  EXPECT_LT(number((skipped - wanted).abs().max()), 1e-12);
  EXPECT_GT(number((skipped - text_states(made.model, caption())).abs().max()), 1e-3);
}

TEST(ClipText, PoolsTheFirstEndTokenOrOfOldFoldersTheLargestId) {
  json plain = with(small(), "architectures", {"CLIPTextModel"});
  const Made made = made_of(plain), old = made_of(with(plain, "eos_token_id", 2));
  const at::Tensor rows = at::tensor({98, 5, 99, 99, 2, 7, 98, 99}, at::kLong).view({2, 4});
  const at::Tensor states = text_states(made.model, rows), pooled = pooled_state(made.model, rows);
  EXPECT_TRUE(at::equal(pooled, at::stack({states[0][2], states[1][3]})));
  EXPECT_TRUE(at::equal(pooled_state(old.model, rows), pooled)) << "99 is the largest id, too";
  const Made other = made_of(with(plain, "eos_token_id", 98));
  EXPECT_TRUE(at::equal(pooled_state(other.model, rows), at::stack({states[0][0], states[1][2]})));
  EXPECT_THAT(test::thrown_message([&] { pooled_state(made.model, rows.narrow(1, 0, 2)); }),
              HasSubstr("got a row without the id 99"));
}

TEST(ClipText, HasTheParametersOfStableDiffusion) {
  const auto count = [](const char* preset) {
    return Made(built_in().resolve({.name = preset}), /*has_memory=*/false).parameters.numel();
  };
  EXPECT_EQ(count("clip-l"), 123'060'480);
  EXPECT_EQ(count("open-clip-h"), 340'387'840);
  EXPECT_EQ(count("open-clip-bigg"), 694'659'840);
}

TEST(ClipText, ReadsAndWritesTheConfigOfTransformers) {
  for (const json& config : {small(), with(small(), "architectures", {"CLIPTextModel"}),
                             with(with(small(), "hidden_act", "gelu"), "eos_token_id", 2)}) {
    const ModelShape shape = shape_of(config);
    const json written = shape.architecture->hugging_face.to_json(shape);
    EXPECT_EQ(written["architectures"], config["architectures"]);
    EXPECT_EQ(written["model_type"], "clip_text_model");
    EXPECT_EQ(shape_of(written), shape) << written.dump();
  }
  EXPECT_EQ(shape_of(small()).own.as<ClipTextSizes>(), (ClipTextSizes{.projection = 24, .end_id = 99}));
  const ModelShape defaults = shape_of({{"model_type", "clip_text_model"}});
  EXPECT_EQ(defaults.hidden, 512);
  EXPECT_EQ(defaults.own.as<ClipTextSizes>(), ClipTextSizes{});
}

TEST(ClipText, ReadsTheTextEncoderOfAWholeClip) {
  json text = small();
  for (const char* key : {"model_type", "architectures", "projection_dim"}) text.erase(key);
  const json whole = {{"model_type", "clip"}, {"projection_dim", 24}, {"text_config", text}};
  EXPECT_EQ(shape_of(whole), shape_of(small()));
}

TEST(ClipText, RefusesKeysThatChangeNumbers) {
  const auto refusal = [](const char* key, const json& value) {
    return test::thrown_message([&] { shape_of(with(small(), key, value)); });
  };
  EXPECT_THAT(refusal("use_attention_mask", true), HasSubstr("use_attention_mask of a CLIP text encoder must be"));
  EXPECT_THAT(refusal("hidden_act", "swish2"), HasSubstr("hidden_act"));
  EXPECT_THAT(refusal("eos_token_id", json{1, 2}), HasSubstr("eos_token_id of a CLIP text encoder must be an integer"));
  EXPECT_THAT(refusal("projection_dim", 0), HasSubstr("projection_dim of a CLIP text encoder must be positive"));
  EXPECT_THAT(refusal("num_attention_heads", 5), HasSubstr("must be hidden, 32"));
}

TEST(ClipText, RefusesCaptionsAndModelsThatDoNotFit) {
  const Made made = made_of(small());
  const auto refusal = [&](const at::Tensor& ids, int64_t skipped) {
    return test::thrown_message([&] { text_states(made.model, ids, skipped); });
  };
  EXPECT_THAT(refusal(caption(), 2), HasSubstr("clip_skip must be at least 0 and below the 2 blocks"));
  EXPECT_THAT(refusal(caption()[0], 0), HasSubstr("must be int64 [rows, tokens]"));
  EXPECT_THAT(refusal(at::zeros({1, 17}, at::kLong), 0), HasSubstr("1 to 16 tokens"));
  EXPECT_THAT(test::thrown_message([] { text_encoder_of(built_in().resolve({.name = "gpt2-tiny"})); }),
              HasSubstr("the states of captions need a text encoder: got a gpt2, which continues text"));
}

// As the first blocks of a larger model, whose states they share.
TEST(ClipText, ServesAsAPartOfALargerModel) {
  const ModelShape shape = shape_of(with(small(), "architectures", {"CLIPTextModel"}));
  Made alone(shape);
  set_values(alone);
  nn::Parameters parameters({}, {.dtype = at::kDouble});
  nn::SerialLayers layers(parameters);
  const ClipTextParts parts =
      make_clip_text(shape, {.outside = "text.", .first_block = 3, .norm = "blocks.4.norm"}, layers);
  const std::pair<const char*, const char*> prefixes[] = {
      {"blocks.4.norm.", "norm."}, {"blocks.4.", "blocks.1."}, {"blocks.3.", "blocks.0."}, {"text.", ""}};
  for (nn::Parameter& p : parameters) {
    const auto* prefix = std::find_if(std::begin(prefixes), std::end(prefixes),
                                      [&](const auto& one) { return p.name.starts_with(one.first); });
    ASSERT_NE(prefix, std::end(prefixes)) << p.name;
    const std::string name = prefix->second + p.name.substr(std::string(prefix->first).size());
    p.value.detach().copy_(alone.parameters.at(name).value);
  }
  const at::Tensor positions = at::arange(6, at::kLong).unsqueeze(0);
  const nn::ForwardContext step = nn::step_of(nn::token_batch(caption(), positions));
  at::Tensor x = parts.embed(*step.batch, step);
  for (const Block::OfOne& block : parts.blocks) x = block(x, step);
  EXPECT_TRUE(at::equal(parts.norm(x, step), text_states(alone.model, caption())));
}

}  // namespace
}  // namespace colossal::models::clip_text_test
