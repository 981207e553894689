// GPT-2, GPT-NeoX, GPT-J, Falcon, OPT, BLOOM and PaLM: sizes, conversion to config.json and back, and refusals.
// tests/interop/families_interop.py checks that they compute what transformers computes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "colossal/base/json.h"
#include "colossal/checkpoint/hugging_face/hugging_face.h"
#include "colossal/models/config.h"
#include "colossal/models/families/falcon.h"
#include "colossal/models/families/gpt2.h"
#include "colossal/models/families/gpt_neox.h"
#include "colossal/models/families/gptj.h"
#include "colossal/models/families/opt.h"
#include "colossal/models/registry.h"
#include "colossal/models/task_batch.h"
#include "colossal/nn/serial_layers.h"
#include "colossal/ops/activation.h"
#include "support/thrown_message.h"

namespace colossal::models::gpt_families_test {
namespace {

using testing::HasSubstr;

ModelShape preset(const std::string& name) { return built_in().resolve({.name = name}); }

/// Returns the number of parameters of the preset, in millions.
double count(const std::string& name) {
  nn::Parameters parameters({}, {.without_memory = true});
  nn::SerialLayers layers(parameters);
  make_model(preset(name), layers);
  return static_cast<double>(parameters.numel()) / 1e6;
}

TEST(GptFamilies, MatchPublishedParameterCounts) {
  EXPECT_NEAR(count("pythia-70m"), 70.43, 0.01);
  EXPECT_NEAR(count("pythia-1b"), 1011.78, 0.01);
  EXPECT_NEAR(count("pythia-12b"), 11846.07, 0.01);
  EXPECT_NEAR(count("gpt-neox-20b"), 20554.57, 0.01);
  EXPECT_NEAR(count("gptj-6b"), 6050.88, 0.01);
  EXPECT_NEAR(count("falcon-rw-1b"), 1311.63, 0.01);
  EXPECT_NEAR(count("falcon-7b"), 6921.72, 0.01);
  EXPECT_NEAR(count("falcon-40b"), 41303.29, 0.01);
  EXPECT_NEAR(count("opt-125m"), 125.24, 0.01);
  EXPECT_NEAR(count("opt-350m"), 331.20, 0.01);
  EXPECT_NEAR(count("opt-6.7b"), 6658.47, 0.01);
  EXPECT_NEAR(count("bloom-560m"), 559.21, 0.01);
  EXPECT_NEAR(count("bloom-7b1"), 7069.02, 0.01);
  EXPECT_NEAR(count("bloom-176b"), 176247.27, 0.01);
  EXPECT_NEAR(count("palm-8b") / 1000, 8.63, 0.01);  // table 1 of the paper
  EXPECT_NEAR(count("palm-62b") / 1000, 62.50, 0.01);
  EXPECT_NEAR(count("palm-540b") / 1000, 540.35, 0.01);
}

/// Shapes in which every key of their folders differs from the presets.
std::vector<ModelShape> odd_shapes() {
  const auto with = [](const char* name, const OwnSizes& own, const std::function<void(ModelShape&)>& change = {}) {
    ModelShape s = preset(name);
    s.own = own;
    if (change) change(s);
    return s;
  };
  return {with("gpt2-tiny", Gpt2Sizes{"relu", false, true}, [](ModelShape& s) { s.tied = false; }),
          with("pythia-tiny", NeoxSizes{.activation = "gelu_new",
                                        .parallel = false,
                                        .attention_bias = false,
                                        .rotary_share = 0.5,
                                        .rotary = {.theta = 77}}),
          with("gptj-tiny", GptjSizes{"relu", 8}, [](ModelShape& s) { s.ffn = 100; }),
          with("falcon-tiny", FalconSizes{.norms = 2}, [](ModelShape& s) { s.kv_heads = 2; }),
          with("falcon-tiny", FalconSizes{}, [](ModelShape& s) { s.kv_heads = 2; }),
          with("falcon-tiny", FalconSizes{}, [](ModelShape& s) { s.kv_heads = 4; }),
          with("falcon-tiny", FalconSizes{.parallel = false, .bias = true, .alibi = true},
               [](ModelShape& s) { s.ffn = 100; }),
          with("opt-tiny", OptSizes{"gelu", true, false, false, 64}),
          with("opt-tiny", OptSizes{.norm_first = false}, [](ModelShape& s) { s.tied = false; })};
}

TEST(GptFamilies, RoundTripConfigs) {
  std::vector<ModelShape> shapes = odd_shapes();
  for (const char* name : {"gpt2-small", "pythia-70m", "gpt-neox-20b", "gptj-6b", "falcon-7b", "falcon-40b",
                           "falcon-rw-1b", "opt-125m", "opt-350m", "bloom-560m"})
    shapes.push_back(preset(name));
  for (const ModelShape& s : shapes) {
    s.validate();
    const nlohmann::json j = s.architecture->hugging_face.to_json(s);
    EXPECT_EQ(built_in().shape_of(j), s) << j;
  }
}

TEST(GptFamilies, HaveFolderNamesForAllParameters) {
  for (const ModelShape& s : odd_shapes()) {
    nn::Parameters parameters({}, {.without_memory = true});
    nn::SerialLayers layers(parameters);
    make_model(s, layers);
    // Names and rows are checked before the folder is opened.
    EXPECT_THAT(test::thrown_message([&] {
                  checkpoint::import_weights("/nonexistent", parameters,
                                             {s.architecture->hugging_face.names(s), "", {}});
                }),
                HasSubstr("has neither model.safetensors"));
  }
}

// Costs are found on sizes alone, where LibTorch lacks some operators. Pipelines are cut by these costs, and runs
// report their share of the peak from them.
TEST(GptFamilies, CountCostsIndependentOfActivation) {
  ModelShape s = preset("gpt2-tiny");
  const double gelu = costs_of(s, example_batch(s, 1, 8)).sum();
  for (const ops::Activation& each : ops::activations()) {
    s.own = Gpt2Sizes{.activation = each.name};
    EXPECT_EQ(costs_of(s, example_batch(s, 1, 8)).sum(), gelu) << each.name;
    const at::Tensor gate_up = at::empty({2, 6}, at::TensorOptions(at::kMeta).dtype(at::kFloat)).requires_grad_();
    each.gated(gate_up).sum().backward();
    EXPECT_EQ(gate_up.grad().sizes(), gate_up.sizes()) << each.name;
  }
  std::vector<ModelShape> others = odd_shapes();
  for (const char* name : {"bloom-tiny", "palm-tiny"}) others.push_back(preset(name));
  for (const ModelShape& other : others)
    EXPECT_GT(costs_of(other, example_batch(other, 1, 8)).sum(), 0) << other.architecture->name;
}

TEST(GptFamilies, ReadFoldersOfOlderVersions) {
  // EleutherAI/pythia and tiiuae/falcon as transformers 4 wrote them, bigscience/bloom as it was published.
  const ModelShape neox = built_in().shape_of({{"model_type", "gpt_neox"},
                                               {"vocab_size", 300},
                                               {"hidden_size", 64},
                                               {"num_hidden_layers", 2},
                                               {"num_attention_heads", 4},
                                               {"intermediate_size", 256},
                                               {"rotary_pct", 0.5},
                                               {"rotary_emb_base", 500}});
  EXPECT_EQ(neox.own.as<NeoxSizes>().rotary_share, 0.5);
  EXPECT_EQ(neox.own.as<NeoxSizes>().rotary.theta, 500);
  const ModelShape bloom = built_in().shape_of({{"model_type", "bloom"},
                                                {"vocab_size", 300},
                                                {"n_embed", 64},
                                                {"num_hidden_layers", 3},
                                                {"num_attention_heads", 4},
                                                {"seq_length", 77},
                                                {"n_inner", nullptr}});
  EXPECT_EQ(bloom.hidden, 64);
  EXPECT_EQ(bloom.layers, 3);
  EXPECT_EQ(bloom.positions, 77);
}

std::string refusal(const std::string& name, const std::string& key, const nlohmann::json& value) {
  const ModelShape s = preset(name);
  nlohmann::json j = s.architecture->hugging_face.to_json(s);
  j[key] = value;
  return test::thrown_message([&] { built_in().shape_of(j); });
}

TEST(GptFamilies, RefuseUnsupportedKeysByName) {
  EXPECT_THAT(refusal("gpt2-tiny", "activation_function", "gelu_old"),
              HasSubstr("activation_function of a GPT-2 must"));
  EXPECT_THAT(refusal("gpt2-tiny", "add_cross_attention", true), HasSubstr("add_cross_attention"));
  EXPECT_THAT(refusal("pythia-tiny", "rotary_pct", 0.1),
              HasSubstr("rotary_pct of config.json must rotate an even number of features of each head: got 0.1, which "
                        "rotates 3 of 32"));
  EXPECT_THAT(refusal("pythia-tiny", "rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.1}}),
              HasSubstr("rope_parameters.partial_rotary_factor of config.json must rotate an even number"));
  EXPECT_THAT(refusal("pythia-tiny", "rotary_pct", 1e300), HasSubstr("rotary_share must be between 0 and 1"));
  EXPECT_THAT(refusal("gptj-tiny", "rotary_dim", 40),
              HasSubstr("rotary_features must be even and at most head_dim, 32"));
  EXPECT_THAT(refusal("falcon-40b", "parallel_attn", false), HasSubstr("parallel_attn of a Falcon must be true"));
  EXPECT_THAT(refusal("falcon-7b", "num_ln_in_parallel_attn", 2),
              HasSubstr("num_ln_in_parallel_attn of a Falcon must"));
  EXPECT_THAT(refusal("opt-tiny", "layer_norm_elementwise_affine", false), HasSubstr("layer_norm_elementwise_affine"));
  EXPECT_THAT(refusal("bloom-tiny", "apply_residual_connection_post_layernorm", true),
              HasSubstr("apply_residual_connection_post_layernorm of a BLOOM must be false"));
}

TEST(GptFamilies, RefuseSizesThatFoldersCannotStore) {
  const auto settled = [](const ModelConfig& config) {
    return test::thrown_message([&] { built_in().resolve(config); });
  };
  EXPECT_THAT(settled({.name = "bloom-tiny", .ffn = 100}), HasSubstr("must be 4 * hidden, 512"));
  EXPECT_THAT(settled({.name = "pythia-tiny", .kv_heads = 2}), HasSubstr("must have kv_heads = heads"));
  EXPECT_THAT(settled({.name = "pythia-tiny", .own = own_keys({"rotary_share=0.1"})}),
              HasSubstr("rotary_share must rotate an even number"));
  ModelShape opt = preset("opt-tiny");
  opt.norm_epsilon = 1e-6;
  EXPECT_THAT(test::thrown_message([&] { opt.validate(); }), HasSubstr("norm_epsilon of an OPT must be 1e-05"));
}

}  // namespace
}  // namespace colossal::models::gpt_families_test
